# Targets need only Go, unless their help says otherwise.

GO       ?= go
BIN      := bin
# A commit with the tag of the number is a release. All others are development builds: 0.9.0-dev+1385e1d0a2b4.
NUMBER   := $(shell cat cmd/quorate/VERSION)
COMMIT   := $(shell git describe --always --abbrev=12 --exclude='*' --dirty=.dirty 2>/dev/null)
TAG      := $(shell git describe --tags --exact-match --match v$(NUMBER) --dirty 2>/dev/null)
VERSION  ?= $(NUMBER)$(if $(filter v$(NUMBER),$(TAG)),,-dev$(addprefix +,$(COMMIT)))
FUZZTIME ?= 30s
FAULTS   ?= 15
DURATION ?= 30m
SEED     ?= 0
ROUNDS   ?= 0
CLOCK    ?= 1
BENCH    ?= .
RUN      ?=
SKIP     ?=
ETCD     ?= etcd
ETCDTOOL ?= etcd-benchmark
REDIS    ?= redis-server
DAPRD    ?= daprd
PLACEMENT ?= placement
SCHEDULER ?= scheduler
NGINX    ?= nginx
IMAGE    ?= quorate
SHOPIMAGE ?= quorate-shop
CERTS    ?= /etc/ssl/certs/ca-certificates.crt

# One set of flags for build, tests, the lab and linters, so that nothing is compiled twice. grpcnotrace leaves out
# golang.org/x/net/trace, which keeps the linker from removing unused methods.
export CGO_ENABLED = 0
FLAGS := -trimpath -tags=grpcnotrace
export GOFLAGS := $(filter-out $(FLAGS),$(shell $(GO) env GOFLAGS)) $(FLAGS)

# Functions are aligned to 16 bytes instead of 32, which saves 1 % of the binary.
LDFLAGS  := -s -w -funcalign=16 -X main.version=$(VERSION)
LINT     := $(GO) tool -modfile=internal/tools/go.mod staticcheck
VULN     := $(GO) tool -modfile=internal/tools/go.mod govulncheck
# gosec checks all rules except these. Their many findings are expected for the reasons given here. New ones are not
# checked one by one:
#   G101  constants with a name like a password: they are names of headers and paths
#   G103  use of unsafe: strings without a copy in hot paths, and system calls
#   G104  unchecked errors: staticcheck and review find those that matter
#   G204  a process started with a variable: run, compare and the lab have to do that
#   G304  a file opened by a variable name: every path comes from the settings of the operator
#   G404  math/rand: internal/archtest lists the packages that may use it, none of which makes secrets
# A correct line is excluded with: // #nosec G402 -- and the reason.
SECURITY := .ci/security -exclude=G101,G103,G104,G204,G304,G404
VULNDB   ?= https://vuln.go.dev
GOFMT     = $(shell $(GO) env GOROOT)/bin/gofmt

.DEFAULT_GOAL := help

.PHONY: help build lab run flags test test-long test-modules race verify simulate simulate-actors lint check \
  simulate-topics simulate-workflows vuln tidy bench timeline soak bench-check console-test stores-test compare \
  faults prove docs-test fuzz golden demo demo-actors demo-workflow cluster dist dist-test image shop-image \
  containers clean

help: ## print this help
	@echo "Quorate. Most used: make run, make test."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

comma := ,

# compile builds a program and counts in one line what it downloads and compiles, because the first build takes minutes:
# $(call compile,OUTPUT,PACKAGE,FLAGS)
compile = { $(GO) build -v $(3) -ldflags '$(LDFLAGS)' -o $(1) $(2) 2>&1; echo "exit $$?"; } | { \
  modules=0; packages=0; code=1; \
  count() { printf "$$1$(1): %d modules downloaded, %d packages compiled$$2" "$$modules" "$$packages"; }; \
  while IFS= read -r line; do case "$$line" in \
    'exit '*) code=$${line\#exit };; \
    'go: downloading '*) modules=$$((modules + 1)); if [ -t 1 ]; then count '\r'; fi;; \
    *[\ :]*) printf '%s\n' "$$line";; \
    *) packages=$$((packages + 1)); if [ -t 1 ]; then count '\r'; fi;; \
  esac; done; if [ -t 1 ]; then start='\r'; else start=; fi; \
  if [ $$((modules + packages)) -gt 0 ]; then count "$$start" '\n'; fi; exit "$$code"; }

build: ## build the static binary bin/quorate
	@$(call compile,$(BIN)/quorate,./cmd/quorate)

# The laboratory has the packages of the product, which make build compiles with the same flags.
lab: build
	@$(call compile,$(BIN)/lab,./cmd/lab)

run: build ## start a node (RUN='--app-id orders' adds flags)
	$(BIN)/quorate run $(RUN)

flags: # for scripts that call go themselves
	@echo '$(GOFLAGS)'

# The packages that take longest begin first. Most of their tests wait, so four run at a time. make lint vets.
FIRST = ./node ./raftfsm ./raftfsm/group ./cmd/quorate ./node/clusterctl $(addprefix ./component/state/,postgresql \
  sqlserver mongodb azure/cosmosdb) ./raftfsm/raftlog ./raftfsm/topics ./node/shareddir ./membership
MODULES = deploy/kubernetes deploy/dist cmd/compare cmd/lab/browsertest component/state/mongodb/ferretdb internal/tools

test: ## run the tests that take seconds (make test-long runs all in full)
	$(GO) test -short -vet=off -timeout 20m -p 4 $(FIRST) ./...

test-long: ## run all tests in full (SKIP='KillNine' skips some); takes a quarter of an hour
	$(GO) test -count=1 -vet=off -timeout 30m $(FIRST) ./... -skip '$(SKIP)'

test-modules: ## run the tests of the nested modules
	@code=0; for m in deploy/kubernetes deploy/dist cmd/compare; do \
	  (cd $$m && $(GO) test -short ./...) || code=1; done; \
	(cd cmd/lab/browsertest && $(GO) vet ./...) || code=1; exit $$code

# What the race detector checks for every change. The tests of the other packages start processes or have few
# goroutines; make verify checks all (RACED=./...). A test that is left out says so: testutil.SkipUnderRace.
RACED = $(addsuffix /...,./raftfsm ./membership ./discovery ./api ./node ./component/state)

race: ## run the tests with the race detector (needs a C compiler; RACED=./... for all packages)
	CGO_ENABLED=1 $(GO) test -race -short -vet=off -timeout 20m -p 3 ./node ./raftfsm ./raftfsm/group $(RACED)

verify: ## check everything before a release, and print a table: less than 100 minutes, after .ci/run
	.ci/verify

simulate: ## simulate clusters in virtual time with SEEDS schedules, from SEED on (default: 5000 from 0)
	QUORATE_SIM_SEEDS=$(or $(SEEDS),5000) QUORATE_SIM_SEED=$(SEED) \
	  $(GO) test -count 1 -timeout 24h ./raftfsm/group -run TestSimulation_KeepsGuarantees -v

simulate-actors: ## simulate hosts of actors in virtual time with SEEDS schedules, from SEED on (default: 3000 from 0)
	QUORATE_SIM_SEEDS=$(or $(SEEDS),3000) QUORATE_SIM_SEED=$(SEED) \
	  $(GO) test -count 1 -timeout 24h ./raftfsm -run TestSimulation_ActorsHaveOneOwner -v

simulate-topics: ## simulate topics in virtual time with SEEDS schedules, from SEED on (default: 2000 from 0)
	QUORATE_SIM_SEEDS=$(or $(SEEDS),2000) QUORATE_SIM_SEED=$(SEED) \
	  $(GO) test -count 1 -timeout 24h ./raftfsm/group -run TestSimulation_TopicsKeepGuarantees -v

simulate-workflows: ## simulate workflows in virtual time with SEEDS schedules, from SEED on (default: 1000 from 0)
	QUORATE_SIM_SEEDS=$(or $(SEEDS),1000) QUORATE_SIM_SEED=$(SEED) \
	  $(GO) test -count 1 -timeout 24h ./raftfsm/group -run TestSimulation_WorkflowsKeepGuarantees -v

lint: ## gofmt, go vet, staticcheck and gosec
	@unformatted=$$($(GOFMT) -l .); \
	if [ -n "$$unformatted" ]; then echo "gofmt -w these:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(LINT) ./...
	$(SECURITY)

check: ## everything a change must pass: .ci/run
	.ci/run

vuln: ## check for known vulnerabilities (needs the database: VULNDB=https://... or file:///...)
	@out=$$($(VULN) -db '$(VULNDB)' ./... 2>&1); code=$$?; printf '%s\n' "$$out"; \
	case "$$out" in *'fetching vulnerabilities: '*) \
	  echo "skipped: the database of vulnerabilities, $(VULNDB), cannot be read from here"; exit 0;; esac; exit $$code

tidy: ## check whether go.mod is tidy; changes nothing
	@code=0; for m in . $(MODULES); do (cd $$m && $(GO) mod tidy -diff) || code=1; done; exit $$code

bench: ## run the benchmarks (BENCH='Get' selects some)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

timeline: ## show how long each stage of a strong save takes, from execution traces of one and of three nodes
	$(GO) test -run '^$$' -bench 'BenchmarkTimeline$(if $(RUN),/$(RUN))' -benchtime 1x ./node

soak: ## save at 80 % of the highest rate for a minute (DURATION=1m): latencies, and pauses with their cause
	QUORATE_SOAK=$(if $(filter command line,$(origin DURATION)),$(DURATION),1m) \
	  $(GO) test -run '^$$' -bench BenchmarkSoak -benchtime 1x -timeout 24h ./node

bench-check: lab ## compare the processor time per request with node/testdata/costs (UPDATE=1 writes it; Linux)
	$(GO) test -run '^$$' -bench 'BenchmarkCost$$' -benchtime 10000x -count 3 ./node >$(BIN)/costs.txt
	$(BIN)/lab bench-check $(if $(UPDATE),-update) <$(BIN)/costs.txt

console-test: build ## test the web console and watches in headless Chromium (SCREENSHOTS=dir keeps pictures)
	cd cmd/lab/browsertest && QUORATE=$(abspath $(BIN))/quorate $(GO) test -count=1 -timeout 15m ./...

# The key that Microsoft's emulator of Cosmos DB always has. It is public.
COSMOSKEY = C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==

stores-test: ## test outside stores on servers in containers (needs Docker)
	docker compose -f deploy/compose/stores.yaml up -d --wait
	status=0; QUORATE_TEST_MONGODB='mongodb://127.0.0.1:27017/?replicaSet=rs0' \
	  QUORATE_TEST_SQLSERVER='sqlserver://sa:Quorate-1@127.0.0.1:1433?TrustServerCertificate=true' \
	  QUORATE_TEST_COSMOSDB='AccountEndpoint=http://127.0.0.1:8081/;AccountKey=$(COSMOSKEY);' \
	  $(GO) test -count=1 -timeout 2h -v -run OnServer ./component/state/... || status=$$?; \
	  docker compose -f deploy/compose/stores.yaml down -v; exit $$status

compare: build ## compare with etcd, Redis, nginx, NATS and daprd (ETCD=etcd RUN='-clients 64 -tables call,hops')
	cd cmd/compare && $(GO) run . -quorate $(abspath $(BIN))/quorate -etcd '$(ETCD)' -redis '$(REDIS)' \
	  -etcd-tool '$(ETCDTOOL)' -daprd '$(DAPRD)' -placement '$(PLACEMENT)' \
	  -scheduler '$(SCHEDULER)' -nginx '$(NGINX)' $(RUN)

faults: build ## inject faults into clusters of real processes (FAULTS=15 rounds of each kind; root on Linux)
	QUORATE_FAULT_ROUNDS=$(FAULTS) QUORATE_FAULT_BINARY=$(abspath $(BIN))/quorate \
	  $(GO) test -count=1 -timeout 60m -p 1 -parallel 1 -v ./cmd/lab/internal/faulttest ./cmd/lab/internal/proof

# CLOCK=0 skips faults that need a rebuilt standard library, whose clock can be shifted.
prove: lab ## run one long campaign of faults and write a report (DURATION=30m SEED=n; root on Linux)
	@if [ '$(CLOCK)' != 0 ]; then echo "compiling all packages again, with a clock that can be shifted"; \
	$(BIN)/lab turn-clock $(BIN)/_clock && $(call compile,$(BIN)/lab,./cmd/lab,-overlay \
	  $(abspath $(BIN))/_clock/overlay.json -tags grpcnotrace$(comma)quorate_clock); fi
	$(BIN)/lab prove -for $(DURATION) -seed $(SEED) -steps $(ROUNDS) -out $(BIN)/proof

docs-test: build ## run every command of README and docs, and compare the output (Linux; RUN=tutorial selects pages)
	QUORATE_DOCS=1 QUORATE_DOCS_BINARY=$(abspath $(BIN))/quorate \
	  $(GO) test -count=1 -timeout 30m -parallel 2 -v -run 'TestPages_Commands/$(RUN)' ./docs

fuzz: ## run every fuzz target for FUZZTIME (30s) each
	@code=0; for file in $$(grep -rlE --include='*_test.go' '^func Fuzz' . | sort); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
	    echo "== $$(dirname $$file) $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x \
	      $$(dirname $$file) || code=1; \
	  done; \
	done; exit $$code

golden: ## rewrite the expected files of tests; read the diff before you commit it
	$(GO) test -timeout 30m \
	  $$(grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -n1 dirname | sort -u) -update

demo: lab ## show state, calls and the kill -9 of a leader on three nodes, in a minute (RUN=-stay keeps them running)
	$(BIN)/lab demo -binary $(BIN)/quorate $(RUN)

demo-actors: lab ## run a bank of actors on three nodes, kill them, check the books (RUN='-duration 5m' is longer)
	$(BIN)/lab demo-actors -binary $(BIN)/quorate $(RUN)

demo-workflow: lab ## run a shop of workflows on three nodes, kill workers and leaders, check the books
	$(BIN)/lab demo-workflow -binary $(BIN)/quorate $(RUN)

cluster: lab ## start three nodes on 127.0.0.1 and print what to try (RUN='-dir d' keeps data)
	$(BIN)/lab cluster -binary $(abspath $(BIN))/quorate $(RUN)

dist: ## build the files of a release in bin/dist: archives, Debian packages, images, checksums
	cd deploy/dist && $(GO) run . -version '$(VERSION)' -certs '$(CERTS)' -out ../../$(BIN)/dist

dist-test: ## test archives and packages, and go install from a module proxy made of files (minutes)
	cd deploy/dist && $(GO) test -count=1 -timeout 30m -v ./...

image: build ## build the container image IMAGE (quorate) from the binary, without internet
	rm -rf $(BIN)/image
	mkdir -p $(BIN)/image/certs $(addprefix $(BIN)/image/root/,var/lib/quorate etc/quorate tmp)
	cp $(BIN)/quorate $(BIN)/image/quorate
	@if [ -r '$(CERTS)' ]; then cp '$(CERTS)' $(BIN)/image/certs/ca-certificates.crt; \
	else echo "no $(CERTS): the image will trust no public certificate"; fi
	docker build -q $(DOCKERFLAGS) -f deploy/container/Dockerfile.prebuilt -t '$(IMAGE)' $(BIN)/image

shop-image: ## build the image of the demo applications of deploy/compose
	mkdir -p $(BIN)/shop && $(GO) build -ldflags '-s -w' -o $(BIN)/shop/shop ./cmd/lab/shop
	docker build -q $(DOCKERFLAGS) -f deploy/container/Dockerfile.shop -t '$(SHOPIMAGE)' $(BIN)/shop

containers: ## inject faults into the demo in containers, watched by Prometheus (needs a Docker engine; takes minutes)
	QUORATE_CONTAINERS=1 $(GO) test -count=1 -timeout 25m -parallel 2 -v \
	  -run 'Containers_(Lose|Prometheus)|Compose_Starts' ./deploy

clean: ## remove what was built
	rm -rf $(BIN)
