# What a person types. The work is in scripts/, csi-sanity/, tests/ and benches/.
SHELL := /bin/bash
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin
.DEFAULT_GOAL := help
.PHONY: help deps build release test-release-full test-e2e run test soak fuzz sanity shell-vm bench
# For how long `make soak` and `make fuzz` run.
SECONDS := 600

help: ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { sub("%", "NAME", $$1); printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install what is missing on Debian or Ubuntu (apt, as root)
	@scripts/deps

build: deps ## build target/release/longshore
	@cargo build --release --locked

release: ## build what a user downloads, into target/dist: archives, image, chart, SBOM, checksums; docs/release.md
	@scripts/deps test
	@scripts/release

run: build ## start the driver and walk one volume through its life, as root
	@scripts/demo

test: ## every ring of tests, with a table of what ran and how long it took
	@scripts/deps test
	@scripts/test

test-%: ## one ring of tests; `scripts/test --list` prints them: make test-vm
	@scripts/deps test
	@scripts/test $*

test-e2e: ## for what `make test` has no time, and a release needs: Kubernetes' storage suite, all of the virtual machine, each cell
	@scripts/deps test
	@scripts/test killed-all matrix-all cloud-all vm-all fuzz kubernetes
	@tests/kubernetes/run all
	@tests/kubernetes/run older
	@tests/kubernetes/run plain
	@tests/kubernetes/run plain-central
	@tests/kubernetes/run nodes nodes-local nodes-shared nodes-alerts
	@tests/kubernetes/run ec2-cases ec2
	@tests/kubernetes/run cinder-cases cinder
	@tests/kubernetes/run azure-cases azure
	@tests/kubernetes/run gce-cases gce
	@tests/kubernetes/run machine machine-alerts

test-release-full: ## build a release in two directories and compare the bytes; aarch64's unit tests by qemu-user
	@scripts/deps test release
	@tests/release/run --full

test-backend-%: ## what one backend needs to be tested, in less than five minutes: make test-backend-nfs
	@scripts/deps test
	@scripts/test --backend $*

soak: ## many clients, a driver that is killed all the time, nothing lost: make soak SECONDS=600
	@scripts/deps test
	@LONGSHORE_SOAK=$(SECONDS) scripts/test soak

fuzz: ## all that is parsed, with inputs that reach new code: make fuzz SECONDS=600
	@scripts/deps test
	@tests/fuzz/run $(SECONDS)

sanity: test-sanity ## the official CSI suite on every backend that this kernel has

shell-vm: ## a shell in the virtual machine, with the driver in it
	@scripts/deps test
	@tests/vm/run --shell

bench: build ## one table of figures from this machine, as root
	@benches/compare
