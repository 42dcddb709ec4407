# Targets need only Go, unless their help says otherwise.

GO       ?= go
BIN      := bin
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
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

export CGO_ENABLED = 0

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
SECURITY := $(GO) tool -modfile=internal/tools/go.mod gosec -quiet -exclude=G101,G103,G104,G204,G304,G404 \
  -exclude-generated -exclude-dir=cmd/compare -exclude-dir=deploy/dist -exclude-dir=internal/lab/browsertest
VULNDB   ?= https://vuln.go.dev
GOFMT     = $(shell $(GO) env GOROOT)/bin/gofmt

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this help
	@echo "Quorate. Most used: make run, make test."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the static binary bin/quorate
	$(GO) build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)' -o $(BIN)/quorate ./cmd/quorate

.PHONY: run
run: build ## start a node (RUN='--app-id orders' adds flags)
	$(BIN)/quorate run $(RUN)

# Tests of clusters hold elections when other tests take their CPU time. Their packages are
# tested after all others, at most two at a time, and one at a time with the race detector.
CLUSTERS  = $(addprefix $(MODULE)/,cmd/quorate deploy \
  $(addprefix internal/lab/,cluster demo demoactors demoapps faulttest proof) internal/peer membership \
  node $(addprefix node/,calls clusterctl credentials doctor inputs network shareddir status) raftfsm raftfsm/group)
OTHERS    = $(filter-out $(CLUSTERS),$(shell $(GO) list ./...))
MODULE   := github.com/quorate/quorate

.PHONY: test
test: ## run the tests that take seconds (make test-long runs the others)
	@code=0; \
	$(GO) test -short -timeout 20m $(OTHERS) || code=1; \
	$(GO) test -short -timeout 20m -p 2 $(CLUSTERS) || code=1; \
	(cd deploy/kubernetes && $(GO) test -short ./...) || code=1; \
	(cd deploy/dist && $(GO) test -short ./...) || code=1; \
	(cd cmd/compare && $(GO) test -short ./...) || code=1; \
	(cd internal/lab/browsertest && $(GO) vet ./...) || code=1; \
	exit $$code

# The tests that -short skips or shortens, in full: clusters of processes, campaigns of faults,
# repeated kills, simulations. The list is generated from the sources. Two packages are tested at
# a time, because these tests mostly wait. Results are not cached, because the cache does not know
# when a program that a test starts has changed.
.PHONY: test-long
test-long: ## run the tests that take minutes (SKIP='KillNine' skips some)
	@tests=$$($(GO) run ./internal/archtest/longtests) || exit 1; \
	printf '%s\n' "$$tests" | SKIP='$(SKIP)' xargs -P 2 -L 1 sh -c \
	  '$(GO) test -count=1 -timeout 30m -run "$$2" -skip "$$SKIP" "$$1" </dev/null' sh
	@docker info >/dev/null 2>&1 || \
	  echo 'skipped: the demo in containers (go test ./deploy, make containers): no Docker engine answers'

# Slow under the race detector and useless with it: packages whose tests start processes, or
# that have no goroutine; tests that kill processes repeatedly, or wait until one is idle; tests
# with many bytes or many steps of one goroutine, or with more goroutines than the detector
# supports; and virtual time with whole clusters or thousands of goroutines: many bubbles with many
# timers crash the detector (golang.org/issue/78156). With the detector, Go's scheduler chooses
# goroutines at random, so a seed does not decide the order of a model.
RACELESS  = $(addprefix $(MODULE)/,cmd/quorate deploy \
  $(addprefix internal/lab/,cluster demo demoactors demoapps faulttest proof) discovery/records raftfsm/placement)
KILLED   := TestCrash_AtAnyDiskStepLosesNothing TestKill_LosesNoAcknowledgedWrite TestCrash_AtAnyStepLosesNothing
LARGE    := TestOpen_HarmedFileOfOneOfThreeLosesNothing TestLargestWrite_SurvivesRestartOnBothEngines \
  TestInvoke_HugeBodyUsesConstantMemory
STEPS    := TestMachine_MatchesModel TestApply_StateDoesNotDependOnGrouping \
  TestCrash_LeavesEarlierStateAndReplayRestoresIt TestConflictingSnapshot_BlocksRaftWithoutGuard
VIRTUAL  := $(addprefix TestSimulation_,KeepsGuarantees LateMessagesKeepGuarantees FindsDisabledGuard \
  SlowLeaderKeepsGuarantees \
  LeaderCrashAheadOfDiskLosesNothing SixtyFourPartitionsSurviveServerLoss ThousandSidecarsSurviveLeaderLoss \
  LocksAndWatchesSurviveCuts ActorsHaveOneOwner) TestBudget_GoodputUnderOverload \
  TestRetain_SendsStateOnceUnderLoad TestChange_RefusesOlderConfiguration TestLeader_CommitsNothingMissingOnItsOwnDisk \
  $(addprefix TestTransfer_,FailureLeavesWorkingLeader ChoosesOnlyVoters ChoosesVoterWithEveryEntry) \
  TestElection_UnknownCandidateGetsVote
SEEDED   := TestModel_SeedDecidesEverything
SPACE    := $(subst x,,x x)
RACE      = $(GO) test -race $(if $(LONG),,-short) -timeout 20m \
  -skip '^($(subst $(SPACE),|,$(strip $(KILLED) $(LARGE) $(STEPS) $(VIRTUAL) $(SEEDED))))$$'

.PHONY: race
race: ## run the tests with the race detector (needs a C compiler; LONG=1: also those that take minutes)
	@code=0; export CGO_ENABLED=1; \
	$(RACE) $(filter-out $(RACELESS),$(OTHERS)) || code=1; \
	$(RACE) -p 1 $(filter-out $(RACELESS),$(CLUSTERS)) || code=1; \
	exit $$code

.PHONY: simulate
simulate: ## simulate clusters in virtual time with SEEDS schedules, from SEED on (default: 5000 from 0)
	QUORATE_SIM_SEEDS=$(or $(SEEDS),5000) QUORATE_SIM_SEED=$(SEED) \
	  $(GO) test -count 1 -timeout 24h ./raftfsm/group -run TestSimulation_KeepsGuarantees -v

.PHONY: simulate-actors
simulate-actors: ## simulate hosts of actors in virtual time with SEEDS schedules, from SEED on (default: 3000 from 0)
	QUORATE_SIM_SEEDS=$(or $(SEEDS),3000) QUORATE_SIM_SEED=$(SEED) \
	  $(GO) test -count 1 -timeout 24h ./raftfsm -run TestSimulation_ActorsHaveOneOwner -v

.PHONY: lint
lint: ## gofmt, go vet, staticcheck, gosec and the language
	@unformatted=$$($(GOFMT) -l .); \
	if [ -n "$$unformatted" ]; then echo "gofmt -w these:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(LINT) ./...
	$(SECURITY) ./...
	$(GO) run ./internal/archtest/language

.PHONY: check
check: lint test test-long tidy ## everything a change must pass: lint, all tests, tidy go.mod

.PHONY: vuln
vuln: ## check for known vulnerabilities (needs the database: VULNDB=https://... or file:///...)
	@out=$$($(VULN) -db '$(VULNDB)' ./... 2>&1); code=$$?; printf '%s\n' "$$out"; \
	case "$$out" in *'fetching vulnerabilities: '*) \
	  echo "skipped: the database of vulnerabilities, $(VULNDB), cannot be read from here"; exit 0;; esac; exit $$code

.PHONY: tidy
tidy: ## check whether go.mod is tidy; changes nothing
	$(GO) mod tidy -diff
	cd internal/tools && $(GO) mod tidy -diff
	cd deploy/kubernetes && $(GO) mod tidy -diff
	cd deploy/dist && $(GO) mod tidy -diff
	cd cmd/compare && $(GO) mod tidy -diff
	cd internal/lab/browsertest && $(GO) mod tidy -diff

.PHONY: bench
bench: ## run the benchmarks (BENCH='Get' selects some)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: timeline
timeline: ## show how long each stage of a strong save takes, from execution traces of one and of three nodes
	$(GO) test -run '^$$' -bench 'BenchmarkTimeline$(if $(RUN),/$(RUN))' -benchtime 1x ./node

.PHONY: soak
soak: ## save at 80 % of the highest rate for a minute (DURATION=1m): latencies, and pauses with their cause
	QUORATE_SOAK=$(if $(filter command line,$(origin DURATION)),$(DURATION),1m) \
	  $(GO) test -run '^$$' -bench BenchmarkSoak -benchtime 1x -timeout 24h ./node

.PHONY: bench-check
bench-check: ## compare the processor time per request with node/testdata/costs.txt (UPDATE=1 writes it; Linux)
	mkdir -p $(BIN)
	$(GO) test -run '^$$' -bench 'BenchmarkCost$$' -benchtime 10000x -count 3 ./node >$(BIN)/costs.txt
	$(GO) run ./cmd/lab bench-check $(if $(UPDATE),-update) <$(BIN)/costs.txt

.PHONY: console-test
console-test: build ## test the web console and watches in headless Chromium (SCREENSHOTS=dir keeps pictures)
	cd internal/lab/browsertest && QUORATE=$(abspath $(BIN))/quorate $(GO) test -count=1 -timeout 15m ./...

# The key that Microsoft's emulator of Cosmos DB always has. It is public.
COSMOSKEY = C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==

.PHONY: stores-test
stores-test: ## test outside stores on servers in containers (needs Docker)
	docker compose -f deploy/compose/stores.yaml up -d --wait
	status=0; QUORATE_TEST_MONGODB='mongodb://127.0.0.1:27017/?replicaSet=rs0' \
	  QUORATE_TEST_SQLSERVER='sqlserver://sa:Quorate-1@127.0.0.1:1433?TrustServerCertificate=true' \
	  QUORATE_TEST_COSMOSDB='AccountEndpoint=http://127.0.0.1:8081/;AccountKey=$(COSMOSKEY);' \
	  $(GO) test -count=1 -timeout 2h -v -run OnServer ./component/state/... || status=$$?; \
	  docker compose -f deploy/compose/stores.yaml down -v; exit $$status

.PHONY: compare
compare: build ## compare with etcd, Redis, nginx and daprd (ETCD=etcd RUN='-clients 64 -tables call,hops')
	cd cmd/compare && $(GO) run . -quorate $(abspath $(BIN))/quorate -etcd '$(ETCD)' -redis '$(REDIS)' \
	  -etcd-tool '$(ETCDTOOL)' -daprd '$(DAPRD)' -placement '$(PLACEMENT)' \
	  -scheduler '$(SCHEDULER)' -nginx '$(NGINX)' $(RUN)

.PHONY: faults
faults: build ## inject faults into clusters of real processes (FAULTS=15 rounds of each kind; root on Linux)
	QUORATE_FAULT_ROUNDS=$(FAULTS) QUORATE_FAULT_BINARY=$(abspath $(BIN))/quorate \
	  $(GO) test -count=1 -timeout 60m -p 1 -parallel 1 -v ./internal/lab/faulttest ./internal/lab/proof

# CLOCK=0 skips faults that need a rebuilt standard library, whose clock can be shifted.
.PHONY: prove
prove: ## run one long campaign of faults and write a report (DURATION=30m SEED=n; root on Linux)
	@mkdir -p $(BIN)
	@if [ '$(CLOCK)' = 0 ]; then overlay= tags=grpcnotrace; \
	else $(GO) run ./cmd/lab turn-clock $(BIN)/_clock && \
	  overlay='-overlay $(abspath $(BIN))/_clock/overlay.json' tags=grpcnotrace,quorate_clock; fi; \
	$(GO) build -trimpath $$overlay -tags $$tags -ldflags '$(LDFLAGS)' -o $(BIN)/lab ./cmd/lab
	$(BIN)/lab prove -for $(DURATION) -seed $(SEED) -steps $(ROUNDS) -out $(BIN)/proof

.PHONY: docs-test
docs-test: build ## run every command of README and docs, and compare the output (Linux; RUN=tutorial selects pages)
	QUORATE_DOCS=1 QUORATE_DOCS_BINARY=$(abspath $(BIN))/quorate \
	  $(GO) test -count=1 -timeout 30m -parallel 2 -v -run 'TestPages_Commands/$(RUN)' ./docs

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s) each
	@code=0; for file in $$(grep -rlE --include='*_test.go' '^func Fuzz' . | sort); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
	    echo "== $$(dirname $$file) $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x \
	      $$(dirname $$file) || code=1; \
	  done; \
	done; exit $$code

.PHONY: golden
golden: ## rewrite the expected files of tests; read the diff before you commit it
	$(GO) test $$(grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -n1 dirname | sort -u) -update

.PHONY: demo
demo: build ## save real data, kill -9 the node, start it again, compare every byte
	$(GO) run ./cmd/lab demo -binary $(BIN)/quorate

.PHONY: demo-apps
demo-apps: build ## run two applications, in Go and Python, on three nodes and kill one (RUN='-stay' keeps running)
	$(GO) run ./cmd/lab demo-apps -binary $(BIN)/quorate $(RUN)

.PHONY: demo-actors
demo-actors: build ## run a bank of actors on three nodes, kill them, check the books (RUN='-duration 5m' is longer)
	$(GO) run ./cmd/lab demo-actors -binary $(BIN)/quorate $(RUN)

.PHONY: cluster
cluster: build ## start three nodes on 127.0.0.1 and print what to try (RUN='-dir d' keeps data)
	$(GO) run ./cmd/lab cluster -binary $(abspath $(BIN))/quorate $(RUN)

.PHONY: dist
dist: ## build the files of a release in bin/dist: archives, checksums, bills of materials, Debian packages
	cd deploy/dist && $(GO) run . -version '$(VERSION)' -out ../../$(BIN)/dist

.PHONY: dist-test
dist-test: ## test archives and packages, and go install from a module proxy made of files (minutes)
	cd deploy/dist && $(GO) test -count=1 -timeout 30m -v ./...

.PHONY: image
image: build ## build the container image IMAGE (quorate) from the binary, without internet
	rm -rf $(BIN)/image
	mkdir -p $(BIN)/image/certs $(addprefix $(BIN)/image/root/,var/lib/quorate etc/quorate tmp)
	cp $(BIN)/quorate $(BIN)/image/quorate
	@if [ -r '$(CERTS)' ]; then cp '$(CERTS)' $(BIN)/image/certs/ca-certificates.crt; \
	else echo "no $(CERTS): the image will trust no public certificate"; fi
	docker build -q $(DOCKERFLAGS) -f deploy/container/Dockerfile.prebuilt -t '$(IMAGE)' $(BIN)/image

.PHONY: shop-image
shop-image: ## build the image of the demo applications of deploy/compose
	mkdir -p $(BIN)/shop && $(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/shop/shop ./internal/lab/shop
	docker build -q $(DOCKERFLAGS) -f deploy/container/Dockerfile.shop -t '$(SHOPIMAGE)' $(BIN)/shop

.PHONY: containers
containers: ## inject faults into the demo in containers, watched by Prometheus (needs a Docker engine; takes minutes)
	QUORATE_CONTAINERS=1 $(GO) test -count=1 -timeout 25m -parallel 2 -v \
	  -run 'Containers_(Lose|Prometheus)|Compose_Starts' ./deploy

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN)
