# SPDX-License-Identifier: Apache-2.0
# Short names for Meson and ninja commands; `make help` lists the goals. Options:
#   SANITIZE=1 (AddressSanitizer and UBSan), SANITIZE=thread, COVERAGE=1, CC=clang: each has its own build folder
#   OPTIMIZE=0, PREFIX, DESTDIR
#   TEST=name CASE=pattern (test, test-long), WITHOUT=regex VALGRIND=1 (check), BENCH=group (bench)
#   PAIRS, BODIES, GRAPHS, SEED, MINUTES, JOBS: sizes of the long searches, described above each

BUILD    ?= build$(if $(SANITIZE),$(if $(filter thread,$(SANITIZE)),-tsan,-asan))$(if $(COVERAGE),-cov)$(if $(filter clang,$(CC)),-clang)
PREFIX   ?= /usr/local
SANITIZERS := $(if $(filter thread,$(SANITIZE)),thread,address,undefined)
OPTIONS  := $(if $(SANITIZE),-Db_sanitize=$(SANITIZERS) -Db_lundef=false) $(if $(COVERAGE),-Db_coverage=true) $(if $(OPTIMIZE),-Doptimization=$(OPTIMIZE))
# `make` and `make install` never install packages: they print what is missing. The goals listed below run tools/setup, which installs it.
SETUP    := tools/setup check
demo test test-long check prove emulate trials torture nemesis hand boxes hunt growth compat proof gpu soak: SETUP := tools/setup $(filter clang,$(CC))
deb dist distcheck release: SETUP := tools/setup release
wheel: SETUP := tools/setup wheel

all: $(BUILD)/build.ninja ## build the command, the libraries and the tests; installs nothing
	@ninja -C $(BUILD)

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

# Runs each time; takes milliseconds if nothing is missing.
$(BUILD)/build.ninja: ready
	@[ -f $@ ] || meson setup $(BUILD) --prefix=$(PREFIX) $(OPTIONS)

ready:
	@$(SETUP)

setup: ## print what is missing, then install it
	@tools/setup

BERT := tests/models/bert_tiny
demo: $(BUILD)/build.ninja ## build the command, shard a small block and a real model over 4 local devices and compare the results
	@ninja -C $(BUILD) tessera
	@$(BUILD)/tessera demo
	@printf '\n$$ tessera verify $(BERT)/model.onnx --devices 4 --inputs $(BERT)/test_data_set_0\n'
	@$(BUILD)/tessera verify $(BERT)/model.onnx --devices 4 --inputs $(BERT)/test_data_set_0

# TEST is a test's name or a regular expression for the beginning of names, CASE a shell pattern for case names.
test: all ## run the tests; the last line is the count (TEST=name CASE=pattern: only these)
	@$(if $(COVERAGE),tools/setup coverage,:)
	@tools/test-summary $(BUILD) '$(TEST)'; status=$$?; \
	  $(if $(COVERAGE),gcovr -r . -f src/ -s $(BUILD) | grep -E '^(lines|branches):';) exit $$status

# Complete versions of tests of which `make test` runs a sample. Releases run them.
test-long: all ## long: the complete versions of the sampled tests
	@tools/test-summary $(BUILD) --long '$(TEST)'

# Builds and runs only the C programs: no Python, no engine. WITHOUT=regex skips tests by name.
WITHOUT :=
check: $(BUILD)/build.ninja ## run the C tests (also with SANITIZE=1, SANITIZE=thread, VALGRIND=1)
	@ninja -C $(BUILD) $$(tools/test-summary $(BUILD) --targets --without='$(WITHOUT)')
	@tools/test-summary $(BUILD) $(if $(VALGRIND),--valgrind,--compiled) --without='$(WITHOUT)'

# Half an hour on two cores. Without optimization, because compiling takes longer than it saves.
tsan: ## long: the C tests and ranks that run models under ThreadSanitizer
	@$(MAKE) --no-print-directory check SANITIZE=thread OPTIMIZE=0 WITHOUT='$(SEARCHES)|sharding test_check'
	@ninja -C build-tsan tessera libtessera_ops.so libtessera_ep.so tests/ep/ep_host && tools/tsan build-tsan

# Part of .ci/run. Without optimization, because compiling takes longer than it saves. Skips searches that take minutes under a sanitizer and read no
# untrusted input; `make check SANITIZE=1 CC=clang` runs them too.
SEARCHES := plan test_(answers|budget|stages)|solver test_(family|cbc)|api test_hand|topology test_closed|sharding test_random
sanitize: $(BUILD)/build.ninja ## the C tests and workers built by clang, under AddressSanitizer and UBSan
	@$(MAKE) --no-print-directory check SANITIZE=1 CC=clang OPTIMIZE=0 WITHOUT='$(SEARCHES)'
	@ninja -C build-asan-clang $$(tools/test-summary build-asan-clang --targets 'ep host program' 'runtime test_workers') && ninja -C $(BUILD) tessera
	@tests/run-script tests/e2e/compilers.py $(BUILD)/tessera build-asan-clang/tessera tests/models || [ $$? = 77 ]
	@TESSERA_SANITIZED=1 tests/run-script tests/ep/host_program.py build-asan-clang/tests/ep/ep_host build-asan-clang/libtessera_ep.so || [ $$? = 77 ]
	@TESSERA_SANITIZED=1 UBSAN_OPTIONS=halt_on_error=1 UCX_MEM_EVENTS=no UCX_MEM_MMAP_HOOK_MODE=none \
	  tests/run-script tests/runtime/test_workers.py build-asan-clang/tests/runtime/run_tool build-asan-clang || [ $$? = 77 ]

# Searches beyond test-long: PAIRS random reshardings, every rule sharded in every way, BODIES random control-flow graphs.
prove: all ## long: more random reshardings, every rule sharded in every way, random control flow
	@$(BUILD)/tests/sharding/sharding_test_reshard $(or $(PAIRS),100000)
	@tests/run-script tests/rules/prove.py $(BUILD)/tests/rules/print_rule
	@tests/run-script tests/e2e/random_bodies.py $(BUILD)/tessera $(or $(BODIES),300) 1000
	@tools/test-summary $(BUILD) --long

# Quantized and vectorized code on emulated CPUs: CPUS="Haswell Nehalem qemu64".
emulate: SETUP := tools/setup emulate
emulate: all
	@tools/emulate $(BUILD) $(CPUS)

# Cross-compiled, run in qemu. Half an hour on two cores.
arm: ## long: the C tests on emulated 64-bit ARM
	@tools/setup emulate
	@SEARCHES='plan |$(SEARCHES)|api test_nomem|topology test_topology|sharding test_(check|reshard)' tools/arm64 build-arm64

wheel-arm64: ready ## build the Python package for 64-bit ARM, in dist/, and try it in emulation
	@tools/setup emulate
	@tools/arm64 wheel dist

# TRIALS (200) random shardings of each small model, and of every NAME/model.onnx in MODELS, on 2 to 8 devices.
trials: all
	@tests/run-script tests/e2e/trials.py $(BUILD)/tessera $(or $(TRIALS),200) $(MODELS)

# 27,000 fault points, half an hour on two idle cores with TMPDIR in /dev/shm. POINTS=n: of each kind of fault in each command;
# ONLY=command, KIND=call, JOBS=2.
torture: all ## long: out of memory, failing I/O and SIGKILL at every point of every command that writes
	@tests/run-script tests/torture/torture.py $(BUILD)/tessera $(BUILD)/tests/torture/libshim.so $(BUILD)/tests/torture/careless $(foreach v,POINTS JOBS ONLY KIND,$(if $($(v)),$(v)=$($(v))))

# COUNT=1000 events on each transport. SEED=1, TRANSPORT=shm,ucx,openmpi,workers,cable..., MINUTES=m, JOBS=2, TIMEOUT=4.
nemesis: all ## long: kill, stop and delay ranks at random moments on every transport
	@tests/run-script tests/nemesis/nemesis.py $(BUILD)/tessera $(foreach v,COUNT SEED TRANSPORT MINUTES JOBS TIMEOUT,$(if $($(v)),$(v)=$($(v))))

# Compares plans with random shardings and stages: 60 for each of 200 small models. None may simulate faster than the plan's lower bound.
hand: all
	@$(BUILD)/tests/api/api_test_hand $(or $(MODELS),200) $(or $(SHARDINGS),60) $(or $(SEED),1)
	@$(BUILD)/tests/api/api_test_hand_stages $(or $(MODELS),200) $(or $(SHARDINGS),60) $(or $(SEED),1)

# Topologies with different GPUs: compares plans with those of an expert. Prints the table of docs/mixed.md; half a minute.
boxes: all
	@tests/run-script tests/e2e/boxes.py $(BUILD)/tessera

# Searches for wrong results: random graphs, each sharded in several ways and compared with Python's ONNX Runtime. GRAPHS=1000, SEED=1,
# MINUTES=m, JOBS=k; the same SEED continues where it ended. Failures are reduced and written to build/hunt/SEED. FOCUS=windows, rounding, bodies,
# names, groups, odd or structures: graphs and shardings of one kind (tests/hunt/focus.py), failures in build/hunt/FOCUS/SEED.
HUNT := SEED=$(or $(SEED),1) OUT=$(BUILD)/hunt/$(FOCUS)/$(or $(SEED),1) $(foreach v,GRAPHS MINUTES JOBS CUTS FOCUS,$(if $($(v)),$(v)=$($(v))))
hunt: all
	@tests/run-script tests/hunt/hunt.py $(BUILD)/tessera $(HUNT)

# Every command on models with n and 2 n inputs, nodes, shardings ...: twice the size may take at most three times as long. Half an hour.
# MODEL=name COMMAND=name: only these.
growth: all ## long: running time of every command as models grow
	@tests/run-script tests/e2e/growth.py $(BUILD)/tessera $(or $(strip $(MODEL) $(COMMAND)),all)

# Models that torch, transformers, timm, torchvision, scikit-learn and xgboost export, with random weights. Downloads about 3 GB of
# Python packages into build/zoo/venv. MODELS="llama_dynamo resnet_qoperator": only these.
zoo: all ## long: models of real exporters, verified on 2, 3, 4 devices and with random shardings
	@tests/run-script tests/zoo/zoo.py $(BUILD)/tessera $(BUILD)/zoo $(MODELS)

# Two hosts as connected network namespaces. Skips, with a message, cases that this machine does not allow.
hosts: SETUP := tools/setup hosts
hosts: all ## long: UCX, sshd and Slurm between two hosts made of network namespaces
	@tests/run-script tests/runtime/hosts.py $(BUILD)/tests/runtime/run_tool $(BUILD)

# WHEELS=dist: tries these, builds none. RELEASE=trixie: another Debian.
bare: SETUP := tools/setup release
bare: ready ## long: build the wheels in an empty Debian system, and use them on two such systems as docs/two_machines.md says
	@WHEELS='$(WHEELS)' RELEASE='$(or $(RELEASE),bookworm)' tests/run-script tests/tools/bare.py .

# SIZE=small: 0.3 GB instead of 3.2 GB. GPU=FOLDER: instead, 24 GB of weights on two ranks of GPU 0 with 16 GB each; files in FOLDER.
proof: all ## a model that one memory-limited environment cannot run, as two ranks in two of them
	@tests/run-script $(if $(GPU),bench/proof_gpu.py $(BUILD) $(GPU),bench/proof.py $(BUILD) $(SIZE))

# ORT="1.22.1 1.30.0": other releases.
compat: all ## the tests that need an engine, with the oldest and the newest ONNX Runtime
	@tools/compat $(BUILD) $(ORT)

bench programs: SETUP := tools/setup bench
programs: $(BUILD)/build.ninja ## build every program, also those that the benchmarks are compared with
	@meson configure $(BUILD) -Dbench=true
	@ninja -C $(BUILD)

bench: programs ## benchmarks, together with other tools for comparison (BENCH=group)
	@tools/bench $(BUILD) $(BENCH)

# Needs an idle machine: refuses on a busy one (FORCE=1 measures anyway, and the pages say so). GROUPS="scaling memory": only these.
figures: all ## measure the figures of README.md and docs/measured.md on this idle machine, and write these pages
	@tests/run-script tools/figures measure $(BUILD) $(GROUPS) $(if $(DLLAMA),--distributed-llama $(DLLAMA)) $(if $(FORCE),--force)
	@tools/figures write

gpu: all ## the tests that need a GPU
	@tools/gpu $(BUILD)

# TURNS=200, SEED=1.
soak: all ## kill and stop ranks at random moments
	@tools/soak $(BUILD) $(or $(TURNS),200) $(or $(SEED),1)

fuzz: ## run the fuzzers
	@tools/setup fuzz
	@tools/fuzz $(FUZZ)

lint: SETUP := tools/setup lint
lint: all ## check module boundaries, format, lengths and exported names
	@tools/lint $(BUILD)

install: all ## install into PREFIX (and DESTDIR)
	@meson configure $(BUILD) --prefix=$(PREFIX)
	@meson install -C $(BUILD)
	@[ -n "$(DESTDIR)" ] || ldconfig 2>/dev/null || true

# Keeps its build folder, so that the next wheel compiles only what changed. Needs a compiler, zlib, jansson and pip, which gets Meson and ninja.
# The second wheel, tessera-onnx-hosts, needs libucx-dev (and libopenmpi-dev, libmpich-dev for their plug-ins).
wheel: ready ## build the Python package, in dist/; with UCX installed, also the wheel for several hosts
	@rm -f dist/tessera_onnx*.whl
	@.deps/wheel/bin/python -m pip wheel -q --no-deps --config-settings=build-dir=build-wheel --config-settings=hosts=dist -w dist . && ls dist
	@ls dist | grep -q '^tessera_onnx_hosts' || echo 'No wheel for several hosts (tessera-onnx-hosts): UCX is not installed (Debian: libucx-dev).'

deb: ready ## build the Debian packages, in dist/
	@tools/deb dist

# The page in build-web/page, which any web server of static files offers: (cd build-web/page && python3 -m http.server -b 127.0.0.1).
# Emscripten finds its scripts by NODE_PATH. `make web-build` leaves out the test in the browser.
web web-build web-test: export NODE_PATH := /usr/share/nodejs
web web-build web-test: SETUP := tools/setup web
web: web-build all ## build the page that plans models in the browser, in build-web/page, and test it
	@tests/run-script tests/web/page.py $(BUILD)/tessera build-web/page tests/models || [ $$? = 77 ]

build-web/build.ninja: ready
	@[ -f $@ ] || meson setup build-web -Dportable=true -Dbuildtype=release --cross-file packaging/web/emscripten.ini

web-build: build-web/build.ninja
	@ninja -C build-web src/web/tessera.js
	@mkdir -p build-web/page
	@cp src/web/page/* src/web/*.js src/report/page/*.js src/report/page/page.css build-web/src/web/tessera.js build-web/src/web/tessera.wasm build-web/page
	@tests/run-script src/web/examples.py build-web/page

# Three minutes on two cores. .ci/run compiles and runs TEST=tile, so that the build does not rot; m32 has the same sizes and is faster.
web-test: build-web/build.ninja ## long: the C tests of the portable modules in WebAssembly, under Node, without long searches
	@ninja -C build-web $$(tools/test-summary build-web --targets --without='$(SEARCHES)' '$(TEST)')
	@tools/test-summary build-web --compiled --without='$(SEARCHES)' '$(TEST)'

m32: SETUP := tools/setup m32
m32 web-test: SEARCHES := $(SEARCHES)|plan test_(joint_)?blocks
m32: ready ## the C tests of the portable modules with 32 bits, without long searches
	@[ -f build-m32/build.ninja ] || meson setup build-m32 -Dportable=true --cross-file packaging/web/m32.ini
	@ninja -C build-m32 src/web/tessera $$(tools/test-summary build-m32 --targets --without='$(SEARCHES)')
	@tools/test-summary build-m32 --compiled --without='$(SEARCHES)'

# From docs/, the headers and the docstrings. Fails if a link is broken. Where Emscripten is installed (tools/setup web), the site offers
# the page in the browser as "Try it".
docs: ## build the documentation site, in build/site
	@tools/setup docs
	@! command -v emcc >/dev/null || $(MAKE) --no-print-directory web-build
	@tools/site build/site $$(command -v emcc >/dev/null && echo --try build-web/page) && python3 tests/tools/test_site.py build/site && \
	  echo 'docs: build/site/index.html'

# From the last commit: tarball, wheel, Debian packages, SBOM, release notes, SHA256SUMS. The same commit gives the same bytes.
dist: ready ## build everything that a release consists of, in dist/
	@tools/dist dist

# Needs a package index; root, debootstrap and a Debian mirror for the Debian packages. DEBIAN="bookworm trixie": releases to try.
distcheck: dist ## long: check the results of `make dist`, install them into empty places and use them
	@DEBIAN='$(or $(DEBIAN),bookworm trixie)' TWICE='$(TWICE)' tests/run-script tests/tools/dist.py dist .

# Half an hour on two idle cores, without the tests. With CCACHE_DISABLE=1 the second build compiles everything again.
# The last lines list what the owner of the repository must fill in (tools/owner).
release: ## long: lint, all tests, everything of `make dist` twice, and all checks of `make distcheck`
	@[ -z "$$(git status --porcelain)" ] || { echo 'release: commit or remove these first:'; git status --short; exit 1; }
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory distcheck TWICE=1
	@tools/owner
	@echo "release: dist/ is complete and checked; publish it with the tag v$$(sed -n "s/^  version: '\(.*\)',/\1/p" meson.build)"

uninstall:
	@ninja -C $(BUILD) uninstall

clean: ## remove the build folders
	rm -rf build build-asan build-asan-clang build-tsan build-arm64 build-arm64-wheel build-clang build-cov build-fuzz build-deb build-dist build-wheel build-web build-m32

.PHONY: web web-build web-test m32 bare ready programs docs proof growth boxes deb dist distcheck release hosts hand gpu help check sanitize tsan arm wheel wheel-arm64 all figures soak setup demo test test-long prove zoo trials torture nemesis hunt compat bench fuzz lint install uninstall clean
