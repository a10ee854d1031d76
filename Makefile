# What a person types. The work is in scripts/, csi-sanity/, tests/vm/ and benches/.
SHELL := /bin/bash
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin
.DEFAULT_GOAL := help
.PHONY: help deps build run test soak fuzz sanity test-vm shell-vm bench
# For how long `make soak` and `make fuzz` run.
SECONDS := 600

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install what is missing on Debian or Ubuntu (apt, as root)
	@scripts/deps

build: deps ## build target/release/longshore
	@cargo build --release --locked

run: build ## start the driver and walk one volume through its life, as root
	@scripts/demo

test: ## everything: format, clippy, cargo test, step matrices, soak, fuzz targets, csi-sanity, virtual machine
	@scripts/deps test
	@scripts/test

soak: ## many clients, a driver that is killed all the time, nothing lost: make soak SECONDS=600
	@scripts/deps test
	@LONGSHORE_SOAK=$(SECONDS) scripts/test soak

fuzz: ## all that is parsed, with inputs that reach new code: make fuzz SECONDS=600
	@scripts/deps test
	@tests/fuzz/run $(SECONDS)

sanity: ## the official CSI suite on every backend
	@scripts/deps test
	@cargo build --locked
	@csi-sanity/run

test-vm: ## only what needs a whole kernel of its own (QEMU, emulated)
	@scripts/deps test
	@tests/vm/run

shell-vm: ## a shell in that virtual machine, with the driver in it
	@scripts/deps test
	@tests/vm/run --shell

bench: build ## one table of figures from this machine, as root
	@benches/compare
