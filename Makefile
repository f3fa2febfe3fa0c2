# SPDX-License-Identifier: Apache-2.0
# The commands people expect; Meson and ninja do the work. Options: SANITIZE=1 (AddressSanitizer, UBSan), SANITIZE=thread,
# VALGRIND=1 (of check), COVERAGE=1, CC=clang (each of these builds has a folder of its own), OPTIMIZE=0, WITHOUT=regex (of check), PREFIX, DESTDIR, BENCH=group, TEST=name, PAIRS=n, BODIES=n, GRAPHS=n, SEED=n, MINUTES=n, JOBS=n.

BUILD    ?= build$(if $(SANITIZE),$(if $(filter thread,$(SANITIZE)),-tsan,-asan))$(if $(COVERAGE),-cov)$(if $(filter clang,$(CC)),-clang)
PREFIX   ?= /usr/local
SANITIZERS := $(if $(filter thread,$(SANITIZE)),thread,address,undefined)
OPTIONS  := $(if $(SANITIZE),-Db_sanitize=$(SANITIZERS) -Db_lundef=false) $(if $(COVERAGE),-Db_coverage=true) $(if $(OPTIMIZE),-Doptimization=$(OPTIMIZE))
# `make` and `make install` build and install nothing from elsewhere: they print what is missing. The goals below run tools/setup, which installs it.
SETUP    := tools/setup check
demo test check prove emulate trials torture nemesis hand boxes hunt growth compat gpu soak wheel deb dist distcheck: SETUP := tools/setup $(filter clang,$(CC))

all: $(BUILD)/build.ninja ## builds the command, the libraries and the tests; installs nothing
	@ninja -C $(BUILD)

help: ## this list
	@grep -hE '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

# Always asked: it costs milliseconds where nothing is to be done.
$(BUILD)/build.ninja: ready
	@[ -f $@ ] || meson setup $(BUILD) --prefix=$(PREFIX) $(OPTIONS)

ready:
	@$(SETUP)

setup: ## installs what is missing, after printing the list
	@tools/setup

# A block cut by hand, then a real model planned, cut and compared.
BERT := tests/models/bert_tiny
demo: all ## a block and a real model cut for 4 local devices, compared with the whole ones
	@$(BUILD)/tessera demo
	@printf '\n$$ tessera verify $(BERT)/model.onnx --devices 4 --inputs $(BERT)/test_data_set_0\n'
	@$(BUILD)/tessera verify $(BERT)/model.onnx --devices 4 --inputs $(BERT)/test_data_set_0

test: all ## every test; the last line is the count (TEST=name: those programs)
	@tools/test-summary $(BUILD) $(TEST)
	@$(if $(COVERAGE),tools/setup coverage && gcovr -r . -f src/ -s $(BUILD) | grep -E '^(lines|branches):',:)

# Programs of the build alone, and nothing else is built: no Python, no engine. WITHOUT=regex: not the tests of such names.
WITHOUT :=
check: $(BUILD)/build.ninja ## the tests in C, in seconds (SANITIZE=1, SANITIZE=thread, VALGRIND=1: the same under a witness)
	@ninja -C $(BUILD) $$(tools/test-summary $(BUILD) --targets --without='$(WITHOUT)')
	@tools/test-summary $(BUILD) $(if $(VALGRIND),--valgrind,--compiled) --without='$(WITHOUT)'

# ThreadSanitizer: the tests in C, then ranks that run models. Half an hour on two cores; not optimised, which is quicker in sum.
tsan: ## long: ThreadSanitizer over the tests in C and over ranks that run models
	@$(MAKE) --no-print-directory check SANITIZE=thread OPTIMIZE=0 WITHOUT='$(SEARCHES)|sharding test_check'
	@ninja -C build-tsan tessera libtessera_ops.so && tools/tsan build-tsan

# What .ci/run asks of clang and of the sanitizers, in one build that is not optimised: compiling would be most of its cost. Left out are
# searches and sums over many cases that read no foreign bytes and take minutes there; `make check SANITIZE=1 CC=clang` has them too.
SEARCHES := plan test_(answers|budget|stages)|solver test_(family|cbc)|api test_hand|topology test_closed|sharding test_random
sanitize: ## the tests in C built by clang, under AddressSanitizer and UBSan (part of .ci/run)
	@$(MAKE) --no-print-directory check SANITIZE=1 CC=clang OPTIMIZE=0 WITHOUT='$(SEARCHES)'

# Long: every row of the table of rules run cut and whole, and its shapes, found from little, held against runs;
# reshardings carried out on random pairs; all node tests of the onnx package cut on every axis, with the list of those that never ran cut and why; every operator lowered in every set.
prove: all ## long: every rule cut in every way, reshardings, all node tests
	@$(BUILD)/tests/sharding/sharding_test_reshard $(or $(PAIRS),100000)
	@tests/run-script tests/rules/prove.py $(BUILD)/tests/rules/print_rule
	@tests/run-script tests/rules/partly.py $(BUILD)/tests/rules/print_rule all
	@tests/run-script tests/e2e/recipes.py $(BUILD)/tessera $(BUILD)/tests/rules/print_rule
	@tests/run-script tests/e2e/expansions.py $(BUILD)/tessera $(BUILD)/tests/rules/print_rule all
	@tests/run-script tests/e2e/random_bodies.py $(BUILD)/tessera $(or $(BODIES),300) 1000
	@tests/run-script tests/e2e/node_tests.py $(BUILD)/tessera all
	@tests/run-script tests/e2e/check_says.py $(BUILD)/tessera tests/models all
	@tests/run-script tests/e2e/lowered.py $(BUILD)/tessera all

# The quantised and vector parts on emulated CPUs: CPUS="Haswell Nehalem qemu64".
emulate: SETUP := tools/setup emulate
emulate: all
	@tools/emulate $(BUILD) $(CPUS)

# The library and the tests in C on 64-bit ARM: cross-built, in qemu. Half an hour on two cores.
arm: ## long: the library and the tests in C on 64-bit ARM, emulated
	@tools/setup emulate
	@SEARCHES='plan |$(SEARCHES)|api test_nomem|topology test_topology|sharding test_(check|reshard)' tools/arm64 build-arm64

# Longer: TRIALS random shardings (200) of each small model, and of every NAME/model.onnx in MODELS, on 2 to 8 devices.
trials: all
	@tests/run-script tests/e2e/trials.py $(BUILD)/tessera $(or $(TRIALS),200) $(MODELS)

# Out of memory, failing I/O and SIGKILL at every point of every command that writes: 27,000 points, half an hour on two idle cores with TMPDIR in /dev/shm.
# POINTS=n of each kind of fault in each command only, JOBS=2, ONLY=command, KIND=call.
torture: all ## long: no memory, failing I/O and SIGKILL at every point of every command that writes
	@tests/run-script tests/torture/torture.py $(BUILD)/tessera $(BUILD)/tests/torture/libshim.so $(BUILD)/tests/torture/careless $(foreach v,POINTS JOBS ONLY KIND,$(if $($(v)),$(v)=$($(v))))

# Ranks killed, stopped and delayed at random moments, COUNT=1000 times on each transport. SEED=1, TRANSPORT=shm,ucx,openmpi..., MINUTES=m, JOBS=2, TIMEOUT=4.
nemesis: all ## long: ranks killed, stopped and delayed on every transport
	@tests/run-script tests/nemesis/nemesis.py $(BUILD)/tessera $(foreach v,COUNT SEED TRANSPORT MINUTES JOBS TIMEOUT,$(if $($(v)),$(v)=$($(v))))
# Plans against random shardings and stages by hand: 60 of each of 200 small models, none of which may simulate faster than what a
# plan calls the least.
hand: all
	@$(BUILD)/tests/api/api_test_hand $(or $(MODELS),200) $(or $(SHARDINGS),60) $(or $(SEED),1)
	@$(BUILD)/tests/api/api_test_hand_stages $(or $(MODELS),200) $(or $(SHARDINGS),60) $(or $(SEED),1)

# Boxes of unlike cards: plans against what an expert draws by hand; prints the table of docs/boxes.md, half a minute.
boxes: all
	@tests/run-script tests/e2e/boxes.py $(BUILD)/tessera

# Wrong results hunted for: random graphs, each cut in several ways, judged by Python's ONNX Runtime. GRAPHS=1000, SEED=1, MINUTES=m, JOBS=k;
# the same SEED goes on where it ended. Finds are made smaller and written to build/hunt/SEED.
HUNT := SEED=$(or $(SEED),1) OUT=$(BUILD)/hunt/$(or $(SEED),1) $(foreach v,GRAPHS MINUTES JOBS CUTS,$(if $($(v)),$(v)=$($(v))))
hunt: all
	@tests/run-script tests/hunt/hunt.py $(BUILD)/tessera $(HUNT)

# Models of n and 2 n inputs, nodes, specs ... with every command: twice the size costs at most three times the time. Half an hour; MODEL=name COMMAND=name: those.
growth: all ## long: every command on models that are large in one way each, at n and 2 n
	@tests/run-script tests/e2e/growth.py $(BUILD)/tessera $(or $(strip $(MODEL) $(COMMAND)),all)

# Models that torch, transformers, timm, torchvision, scikit-learn and xgboost export, with random weights. Needs a package index: about 3 GB of
# packages go into build/zoo/venv, which the next run uses again. MODELS="llama_dynamo resnet_qoperator": only these.
zoo: all ## long: models of real exporters, verified on 2, 3, 4 devices and with random shardings
	@tests/run-script tests/zoo/zoo.py $(BUILD)/tessera $(BUILD)/zoo $(MODELS)

# Two hosts as network namespaces with a cable between them: UCX, a real sshd, a real Slurm. What this machine does not allow is skipped with a message.
hosts: SETUP := tools/setup hosts
hosts: all ## long: two hosts made of network namespaces, a real sshd and a real Slurm
	@tests/run-script tests/runtime/hosts.py $(BUILD)/tests/runtime/run_tool $(BUILD)

# The tests that need an engine, with the oldest ONNX Runtime that has a wheel with a library and the newest. ORT="1.22.1 1.30.0": others.
compat: all ## the tests that need an engine, with the oldest and the newest ONNX Runtime
	@tools/compat $(BUILD) $(ORT)

bench: SETUP := tools/setup bench
bench: $(BUILD)/build.ninja ## figures against peers in the same run (BENCH=group)
	@meson configure $(BUILD) -Dbench=true
	@ninja -C $(BUILD)
	@tools/bench $(BUILD) $(BENCH)

gpu: all ## the tests that need a GPU
	@tools/gpu $(BUILD)

# Ranks killed and stopped at random moments: TURNS=200, SEED=1.
soak: all ## ranks killed and stopped at random moments
	@tools/soak $(BUILD) $(or $(TURNS),200) $(or $(SEED),1)

fuzz: ## the fuzzers
	@tools/setup fuzz
	@tools/fuzz $(FUZZ)

lint: SETUP := tools/setup lint
lint: all ## rooms, layout, lengths, exported names
	@tools/lint $(BUILD)

install: all ## into PREFIX (and DESTDIR)
	@meson configure $(BUILD) --prefix=$(PREFIX)
	@meson install -C $(BUILD)
	@[ -n "$(DESTDIR)" ] || ldconfig 2>/dev/null || true

# The Python package as a wheel, in dist/. Its build folder stays, so that the next one compiles what has changed.
wheel: ready ## the Python package, in dist/
	@.venv/bin/python -m pip wheel -q --no-deps -Cbuild-dir=build-wheel -w dist . && ls dist

deb: ready ## a Debian package, in dist/
	@tools/deb dist

# The tree at this commit as tessera-VERSION.tar.xz, with the wheel and the package beside it. Compiles the library once: the package's
# files are the wheel's, which a compiler cache knows (apt-get install ccache). No test is built.
dist: $(BUILD)/build.ninja wheel deb ## tarball, wheel and Debian package, in dist/
	@meson dist -C $(BUILD) --no-tests --allow-dirty >/dev/null && cp $(BUILD)/meson-dist/*.tar.xz dist && ls dist

# What was made is installed where nothing else is, and used; needs a package index.
distcheck: dist ## long: the wheel, the tarball and the package as somebody finds them who gets them
	@.venv/bin/python tests/tools/dist.py dist .

uninstall:
	@ninja -C $(BUILD) uninstall

clean: ## removes the build folders
	rm -rf build build-asan build-asan-clang build-tsan build-arm64 build-clang build-cov build-fuzz build-deb build-wheel

.PHONY: ready growth boxes deb dist distcheck hosts hand gpu help check sanitize tsan arm wheel all soak setup demo test prove trials torture nemesis hunt compat bench fuzz lint install uninstall clean
