# SPDX-License-Identifier: Apache-2.0
# Nix: nix-build packaging. Not tried; nix-instantiate --parse accepts it.
{ pkgs ? import <nixpkgs> { } }:

pkgs.stdenv.mkDerivation {
  pname = "tessera";
  version = "1.0.0";
  src = ../.;
  nativeBuildInputs = with pkgs; [ meson ninja pkg-config python3 ];
  buildInputs = with pkgs; [ jansson zlib openmpi ucx ];
  postPatch = "patchShebangs tools";
  mesonFlags = [ "-Dtests=false" "-Dwerror=false" ];
  meta = {
    description = "Run one ONNX model across several devices";
    license = pkgs.lib.licenses.asl20;
    platforms = pkgs.lib.platforms.linux;
    mainProgram = "tessera";
  };
}
