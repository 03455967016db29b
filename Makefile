# SPDX-License-Identifier: Apache-2.0
#
# Each recipe is one bash script. Everything it makes goes to bin/, dist/ or .cache/, which git ignores.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

# How Go compiles tests, programs, the control plane and what the linters read: alike, as packaging/programs.sh does, so
# that no package is compiled twice. What debuggers read is left out, an eighth of the work. make lint has go vet.
export CGO_ENABLED ?= 0
export GOFLAGS ?= -trimpath -vet=off -gcflags=all=-dwarf=false

# What a binary says its version is. A tree without history (a source archive) can be given one: make VERSION=v1.2.3.
VERSION ?= $(shell packaging/version.sh)

# How long make fuzz spends on each target.
FUZZTIME ?= 10s

# The longest that one test binary may take. On a new machine the first tests build a root file system, and compile the
# programs of other projects that they ask.
TEST_TIMEOUT ?= 45m

# How many power cuts make test-vm spreads over an update with ostree, and over one on a host of packages; and a quarter
# as many where the boot loader counts boots, and where it is systemd-boot.
VM_CUTS ?= 40

# What test/suites.sh says to the longest suites: -short makes fewer cuts, spread over all points of an update, and leaves
# out what other suites have by parts, which is what .ci/run has time for.
LONG_FLAGS ?=

CACHE := .cache
LINTER := $(CACHE)/golangci-lint
GOTESTSUM := $(CACHE)/gotestsum

# A text as one word of the shell.
quoted = '$(subst ','\'',$(1))'

# Every Go file of the tree, in the nested modules too, each ended by a NUL.
GO_FILES = find . -path './.?*' -prune -o -path ./bin -prune -o -name '*.go' -type f -print0

# The folders in which a file, its name like the glob $(1), has a line that matches the extended regular expression $(2).
folders-with = { grep -rlE --include='$(1)' --exclude-dir=testdata --exclude-dir='.?*' '$(2)' . || true; } \
	| xargs -r dirname | sort -u

# What a package does that the race detector is there for.
CONCURRENT := ^[[:space:]]+go [[:alnum:]_.]+\(|"sync(/atomic)?"|golang.org/x/sync

.PHONY: help
help: ## Shows this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Builds the static binaries of cmd/ into bin/
	@mkdir -p bin
	VERSION=$(call quoted,$(VERSION)) packaging/programs.sh bin $(notdir $(wildcard cmd/*))

.PHONY: images
images: ## Builds the container images for amd64 and arm64 into bin/images, an OCI layout each
	@VERSION=$(call quoted,$(VERSION)) packaging/images/build.sh

.PHONY: release
release: ## Builds all that a release has into dist/: make release VERSION=v0.1.0
	@mkdir -p $(CACHE)
	rm -rf $(CACHE)/dist
	VERSION=$(call quoted,$(if $(filter-out file default undefined,$(origin VERSION)),$(VERSION))) OUT=$(CACHE)/dist \
		packaging/release.sh
	rm -rf dist
	mv $(CACHE)/dist dist

.PHONY: deps
deps: ## Installs the Debian packages that the labs need (as root; does nothing when all are there); BROWSER_TESTS=1: a browser, too
	@test/deps.sh

.PHONY: kubebox
kubebox: ## Builds the control plane that the tests run (some minutes the first time; does nothing when it is there)
	@go run ./test/lab/cluster/up -build

.PHONY: test
test: deps kubebox $(GOTESTSUM) ## Runs the tests of all packages, and a sample of those on hosts and control planes: some minutes
	@TEST_TIMEOUT=$(TEST_TIMEOUT) test/suites.sh sample

.PHONY: test-all
test-all: export BROWSER_TESTS = 1
test-all: deps kubebox $(GOTESTSUM) ## Runs every test that needs no VM; LAB=require makes a lab that cannot run a failure
	@TEST_TIMEOUT=$(TEST_TIMEOUT) LONG_FLAGS="$(LONG_FLAGS)" test/suites.sh all

.PHONY: test-os
test-os: deps ## Runs those of make test-all that are about rpm-ostree and bootc, and about what stands in for them
	@go test -timeout $(TEST_TIMEOUT) ./test/standin/rpmostree/... ./test/standin/bootc/... ./test/hosts/osupdate

.PHONY: test-real-os
test-real-os: deps ## Runs those about rpm-ostree with the real one in the tree RPM_OSTREE (CONTRIBUTING.md says what it has)
	@test -d "$(RPM_OSTREE)" || { echo "RPM_OSTREE has to name a tree; CONTRIBUTING.md says which" >&2; exit 2; }
	@RPM_OSTREE="$(abspath $(RPM_OSTREE))" LAB=require go test -count=1 -v -timeout $(TEST_TIMEOUT) ./test/standin/rpmostree ./test/hosts/osupdate

.PHONY: test-vm
test-vm: ## Runs the tests on virtual machines (as root, for minutes): updates, ways back, VM_CUTS power cuts
	@VM_TESTS=require VM_CUTS=$(VM_CUTS) LAB_INSTALL=1 go -C test/hosts/vm test -count=1 -timeout 4h

.PHONY: test-vm-short
test-vm-short: ## Runs what of test-vm a change has to pass: an update, its ways back, and two power cuts
	@VM_TESTS=require LAB_INSTALL=1 go -C test/hosts/vm test -short -count=1 -timeout 60m

.PHONY: test-cluster-api
test-cluster-api: deps kubebox ## Runs the tests with Cluster API's own controllers (as root; minutes, more the first time)
	@go -C test/fleets/capi/managers mod tidy -diff # make lint leaves that out: the modules behind it are many
	CLUSTER_API_TESTS=1 LAB=require go test -count=1 -v -timeout $(TEST_TIMEOUT) ./test/fleets/capi

.PHONY: race
race: ## Runs the tests of the packages that start goroutines or share memory under the race detector
	@command -v "$$(go env CC)" >/dev/null || { echo "race: the detector needs a C compiler ($$(go env CC))" >&2; exit 1; }
	packages=$$($(call folders-with,*.go,$(CONCURRENT)) | sed -E '/^\.\/(test|cmd)(\/|$$)/d')
	if [[ -z $$packages ]]; then echo "race: no package starts a goroutine"; exit 0; fi
	CGO_ENABLED=1 go test -race -timeout $(TEST_TIMEOUT) $$packages

.PHONY: fuzz
fuzz: ## Runs each fuzz target for FUZZTIME
	@$(call folders-with,*_test.go,^func Fuzz) | while read -r folder; do
		targets=$$(go test -list '^Fuzz' "$$folder" | awk '/^Fuzz/')
		for target in $$targets; do
			echo "fuzz: $$folder $$target"
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$folder" </dev/null
		done
	done

# On one processor, so that a name has no suffix that depends on the machine. The first figure has the benchmark's own
# name, each further one its unit after a dot.
.PHONY: bench
bench: build ## Prints what things cost, a line each: "bench: <name> <value> <unit>"
	@folders=$$($(call folders-with,*_test.go,^func Benchmark))
	if [[ $$folders ]]; then
		go test -run '^$$' -bench . -benchmem -cpu 1 $$folders | awk '
			/^(FAIL|panic:|---)/ { print > "/dev/stderr" }
			/^pkg: / { n = split($$2, part, "/"); pkg = part[n] }
			/^Benchmark/ {
				for (i = 3; i < NF; i += 2) {
					unit = $$(i + 1)
					sub(/\/.*/, "", unit)
					print "bench: " pkg "." substr($$1, 10) (i > 3 ? "." unit : ""), $$i, $$(i + 1)
				}
			}'
	fi
	go run ./test/bench

.PHONY: demo
demo: build ## Shows a directory in seconds; then, as root, one host and a pool of nodes on this machine
	@go run ./test/demo

# The binary is rebuilt when its pin moves; nothing else in the tree decides what it is.
$(LINTER): tools/go.mod tools/go.sum
	@mkdir -p $(CACHE)
	echo "building golangci-lint, once"
	CGO_ENABLED=0 go -C tools build -trimpath -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	touch $@

$(GOTESTSUM): tools/gotestsum/go.mod tools/gotestsum/go.sum
	@mkdir -p $(CACHE)
	CGO_ENABLED=0 go -C tools/gotestsum build -trimpath -o ../../$@ gotest.tools/gotestsum
	touch $@

.PHONY: lint
lint: $(LINTER) ## Checks formatting, vet, the linters, all modules and, where shellcheck is installed, the scripts
	@status=0
	wrong=$$($(GO_FILES) | xargs -0 -r gofmt -l)
	if [[ $$wrong ]]; then
		printf 'gofmt wants to change %s\n' $$wrong >&2
		status=1
	fi
	go mod tidy -diff || status=1
	go -C tools mod tidy -diff || status=1
	go -C tools/packaging mod tidy -diff || status=1
	go -C tools/api mod tidy -diff || status=1
	go -C tools/alertmanager mod tidy -diff || status=1
	go -C tools/gotestsum mod tidy -diff || status=1
	go -C test/lab/cluster/kubebox mod tidy -diff || status=1
	# The linters vet what has no tag.
	go vet -tags faults ./... || status=1
	go vet -tags manual ./cli || status=1
	go -C tools/packaging vet ./... || status=1
	$(LINTER) run || status=1
	if command -v shellcheck >/dev/null; then
		git ls-files -z --cached --others --exclude-standard -- '*.sh' .ci/run | xargs -0 -r shellcheck || status=1
	fi
	exit $$status

.PHONY: generate
generate: ## Writes all generated code anew
	go generate ./...

# Compared with the state before, not with the last commit, so that work in progress is no obstacle.
.PHONY: check-dirty
check-dirty: ## Fails, and names the files, when generate, tidy or gofmt change anything (the change is left in place)
	@state() { git ls-files -z --cached --others --exclude-standard | { xargs -0 -r sha256sum 2>/dev/null || true; } | sort -k 2; }
	before=$$(state)
	go generate ./...
	go mod tidy
	go -C tools mod tidy
	go -C tools/packaging mod tidy
	go -C tools/api mod tidy
	go -C tools/alertmanager mod tidy
	go -C tools/gotestsum mod tidy
	go -C test/lab/cluster/kubebox mod tidy
	$(GO_FILES) | xargs -0 -r gofmt -w
	changed=$$(diff <(echo "$$before") <(state) | awk '/^[<>]/ { $$1 = $$2 = ""; print substr($$0, 3) }' | sort -u || true)
	if [[ $$changed ]]; then
		echo "check-dirty: generate, tidy or gofmt changed these files; commit what they look like now:" >&2
		echo "$$changed" >&2
		exit 1
	fi

.PHONY: clean
clean: ## Removes bin/, dist/ and .cache/
	rm -rf bin dist $(CACHE)
