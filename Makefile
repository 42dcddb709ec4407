# Everything here needs Go and nothing else, unless a target says so.

GO       ?= go
BIN      := bin
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FUZZTIME ?= 30s
BENCH    ?= .
RUN      ?=

export CGO_ENABLED = 0

LDFLAGS  := -s -w -X main.version=$(VERSION)
LINT     := $(GO) tool -modfile=internal/tools/go.mod staticcheck
GOFMT     = $(shell $(GO) env GOROOT)/bin/gofmt

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this help
	@echo "Quorate. The two to know: make run, make test."
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the static binary bin/quorate
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/quorate ./cmd/quorate

.PHONY: run
run: build ## start a node (RUN='--app-id orders' adds flags)
	$(BIN)/quorate run $(RUN)

.PHONY: test
test: ## run all tests
	$(GO) test ./...

.PHONY: race
race: ## run all tests with the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race ./...

.PHONY: lint
lint: ## gofmt, go vet and staticcheck
	@unformatted=$$($(GOFMT) -l .); if [ -n "$$unformatted" ]; then echo "gofmt -w these:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(LINT) ./...

.PHONY: check
check: lint test tidy ## everything a change must pass: lint, tests, tidy go.mod

.PHONY: tidy
tidy: ## say whether go.mod is tidy, and change nothing
	$(GO) mod tidy -diff
	cd internal/tools && $(GO) mod tidy -diff

.PHONY: bench
bench: ## run the benchmarks (BENCH='Get' picks some)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s) each
	@set -e; for file in $$(grep -rlE --include='*_test.go' '^func Fuzz' . | sort); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
	    echo "== $$(dirname $$file) $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$(dirname $$file); \
	  done; \
	done

.PHONY: golden
golden: ## rewrite the expected files of tests; read the diff before you commit it
	$(GO) test $$(grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -n1 dirname | sort -u) -update

.PHONY: demo
demo: build ## save real data, kill -9 the node, start it again, compare every byte
	$(GO) run ./cmd/demo -binary $(BIN)/quorate

.PHONY: cluster
cluster: build ## start three nodes on 127.0.0.1 and say what to try (RUN='-dir d' keeps data)
	$(GO) run ./cmd/cluster -binary $(abspath $(BIN))/quorate $(RUN)

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN)
