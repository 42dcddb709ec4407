# Everything here needs Go and nothing else, unless a target says so.

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
ETCD     ?= etcd
REDIS    ?= redis-server
IMAGE    ?= quorate
SHOPIMAGE ?= quorate-shop
CERTS    ?= /etc/ssl/certs/ca-certificates.crt

export CGO_ENABLED = 0

LDFLAGS  := -s -w -X main.version=$(VERSION)
LINT     := $(GO) tool -modfile=internal/tools/go.mod staticcheck
VULN     := $(GO) tool -modfile=internal/tools/go.mod govulncheck
VULNDB   ?= https://vuln.go.dev
GOFMT     = $(shell $(GO) env GOROOT)/bin/gofmt

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this help
	@echo "Quorate. The two to know: make run, make test."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the static binary bin/quorate
	$(GO) build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)' -o $(BIN)/quorate ./cmd/quorate

.PHONY: run
run: build ## start a node (RUN='--app-id orders' adds flags)
	$(BIN)/quorate run $(RUN)

# Tests of clusters hold elections when other tests keep them from the processors. Their
# packages are tested one after the other, all others beside each other.
CLUSTERS  = $(addprefix $(MODULE)/,cmd/cluster cmd/demo cmd/demoapps cmd/internal/faulttest cmd/internal/proof cmd/quorate deploy internal/peer membership node raftfsm raftfsm/group)
OTHERS    = $(filter-out $(CLUSTERS),$(shell $(GO) list ./...))
MODULE   := github.com/quorate/quorate

.PHONY: test
test: ## run all tests
	@code=0; \
	$(GO) test -timeout 20m $(OTHERS) || code=1; \
	$(GO) test -timeout 20m -p 1 $(CLUSTERS) || code=1; \
	(cd deploy/kubernetes && $(GO) test ./...) || code=1; \
	(cd cmd/compare && $(GO) test ./...) || code=1; \
	exit $$code
	@docker info >/dev/null 2>&1 || echo 'skipped: the demo in containers (go test ./deploy, make containers): no Docker engine answers'

# What takes long under the race detector and has nothing for it: packages whose tests start
# processes, or that have no goroutine; tests that kill processes again and
# again, or wait for one to be idle; and tests of many bytes, or many steps of one goroutine,
# or of more goroutines than the detector bears. And whole clusters in virtual time: many
# bubbles with many timers crash the detector itself (golang.org/issue/78156).
RACELESS  = $(addprefix $(MODULE)/,cmd/cluster cmd/quorate cmd/demo cmd/demoapps cmd/internal/faulttest cmd/internal/proof deploy discovery/records raftfsm/placement)
KILLED   := TestACrashAtAnyStepOfTheDiskWorkLosesNothing|TestNothingAcknowledgedIsLostByKillNine|TestNothingAcknowledgedIsLostByACrashAtAnyStepOfTheDiskWork
LARGE    := TestTheLargestWriteSurvivesARestartOnBothLogs|TestAHugeBodyPassesBothWaysInConstantMemory
STEPS    := TestTheMachineDoesWhatTheModelDoes|TestTheStateDoesNotDependOnHowEntriesAreGrouped|TestACrashLeavesAnEarlierStateAndReplayLeadsToTheSame|TestWithoutTheMendingRaftNeverGoesOnFromSuchASnapshot
VIRTUAL  := TestSimulatedClustersKeepTheirPromises|TestTheSimulationFindsAGuardThatIsSwitchedOff|TestALeaderThatIsSlowToGiveUpBreaksNothing|TestALeaderThatCrashesAheadOfItsDiskLosesNothing|TestSixtyFourPartitionsAreSpreadOverFiveServersAndOutliveOne|TestAThousandSidecarsGoOnWhenTheLeaderOfFiveServersIsLost

.PHONY: race
race: ## run the tests with the race detector (needs a C compiler)
	@code=0; export CGO_ENABLED=1; \
	$(GO) test -race -timeout 20m -skip '^($(KILLED)|$(LARGE)|$(STEPS)|$(VIRTUAL))$$' $(filter-out $(RACELESS),$(OTHERS)) || code=1; \
	$(GO) test -race -timeout 20m -skip '^($(KILLED)|$(LARGE)|$(STEPS)|$(VIRTUAL))$$' -p 1 $(filter-out $(RACELESS),$(CLUSTERS)) || code=1; \
	exit $$code

.PHONY: simulate
simulate: ## play SEEDS schedules of clusters in virtual time, from SEED on (default: 5000, any)
	QUORATE_SIM_SEEDS=$(or $(SEEDS),5000) QUORATE_SIM_SEED=$(SEED) $(GO) test -count 1 -timeout 24h ./raftfsm/group -run TestSimulatedClusters -v

.PHONY: lint
lint: ## gofmt, go vet and staticcheck
	@unformatted=$$($(GOFMT) -l .); if [ -n "$$unformatted" ]; then echo "gofmt -w these:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(LINT) ./...

.PHONY: check
check: lint test tidy ## everything a change must pass: lint, tests, tidy go.mod

.PHONY: vuln
vuln: ## look for known vulnerabilities (needs the database: VULNDB=https://... or file:///...)
	@out=$$($(VULN) -db '$(VULNDB)' ./... 2>&1); code=$$?; printf '%s\n' "$$out"; \
	case "$$out" in *'fetching vulnerabilities: '*) \
	  echo "skipped: the database of vulnerabilities, $(VULNDB), cannot be read from here"; exit 0;; esac; exit $$code

.PHONY: tidy
tidy: ## say whether go.mod is tidy, and change nothing
	$(GO) mod tidy -diff
	cd internal/tools && $(GO) mod tidy -diff
	cd deploy/kubernetes && $(GO) mod tidy -diff
	cd cmd/compare && $(GO) mod tidy -diff

.PHONY: bench
bench: ## run the benchmarks (BENCH='Get' picks some)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: compare
compare: build ## measure beside etcd and Redis (ETCD=etcd REDIS=redis-server RUN='-clients 64 -sizes 64,4096')
	cd cmd/compare && $(GO) run . -quorate $(abspath $(BIN))/quorate -etcd '$(ETCD)' -redis '$(REDIS)' $(RUN)

.PHONY: faults
faults: build ## break clusters of real processes (FAULTS=15 rounds of each kind; root on Linux)
	QUORATE_FAULT_ROUNDS=$(FAULTS) QUORATE_FAULT_BINARY=$(abspath $(BIN))/quorate $(GO) test -count=1 -timeout 60m -p 1 -parallel 1 -v ./cmd/internal/faulttest ./cmd/internal/proof

# CLOCK=0 leaves out what needs the standard library to be built again, with a clock that
# can be turned.
.PHONY: prove
prove: ## one long campaign of faults with a report (DURATION=30m SEED=n; root on Linux)
	@mkdir -p $(BIN)
	@if [ '$(CLOCK)' = 0 ]; then overlay= tags=grpcnotrace; \
	else $(GO) run ./cmd/internal/turnclock $(BIN)/_clock && overlay='-overlay $(abspath $(BIN))/_clock/overlay.json' tags=grpcnotrace,quorate_clock; fi; \
	$(GO) build -trimpath $$overlay -tags $$tags -ldflags '$(LDFLAGS)' -o $(BIN)/prove ./cmd/prove
	$(BIN)/prove -for $(DURATION) -seed $(SEED) -steps $(ROUNDS) -out $(BIN)/proof

.PHONY: docs-test
docs-test: build ## type every line of README and docs, and compare what it prints (Linux; RUN=tutorial picks pages)
	QUORATE_DOCS=1 QUORATE_DOCS_BINARY=$(abspath $(BIN))/quorate $(GO) test -count=1 -timeout 30m -parallel 2 -v -run 'TestTheLines/$(RUN)' ./docs

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s) each
	@code=0; for file in $$(grep -rlE --include='*_test.go' '^func Fuzz' . | sort); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
	    echo "== $$(dirname $$file) $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$(dirname $$file) || code=1; \
	  done; \
	done; exit $$code

.PHONY: golden
golden: ## rewrite the expected files of tests; read the diff before you commit it
	$(GO) test $$(grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -n1 dirname | sort -u) -update

.PHONY: demo
demo: build ## save real data, kill -9 the node, start it again, compare every byte
	$(GO) run ./cmd/demo -binary $(BIN)/quorate

.PHONY: demo-apps
demo-apps: build ## two applications, in Go and Python, on three nodes, one of them killed (RUN='-stay' goes on)
	$(GO) run ./cmd/demoapps -binary $(BIN)/quorate $(RUN)

.PHONY: cluster
cluster: build ## start three nodes on 127.0.0.1 and say what to try (RUN='-dir d' keeps data)
	$(GO) run ./cmd/cluster -binary $(abspath $(BIN))/quorate $(RUN)

.PHONY: image
image: build ## build the container image IMAGE (quorate) from the binary, without internet
	rm -rf $(BIN)/image && mkdir -p $(BIN)/image/certs $(BIN)/image/root/var/lib/quorate $(BIN)/image/root/etc/quorate $(BIN)/image/root/tmp
	cp $(BIN)/quorate $(BIN)/image/quorate
	@if [ -r '$(CERTS)' ]; then cp '$(CERTS)' $(BIN)/image/certs/ca-certificates.crt; \
	else echo "no $(CERTS): the image will trust no public certificate"; fi
	docker build -q $(DOCKERFLAGS) -f deploy/container/Dockerfile.prebuilt -t '$(IMAGE)' $(BIN)/image

.PHONY: shop-image
shop-image: ## build the image of the demo applications of deploy/compose
	mkdir -p $(BIN)/shop && $(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/shop/shop ./cmd/shop
	docker build -q $(DOCKERFLAGS) -f deploy/container/Dockerfile.shop -t '$(SHOPIMAGE)' $(BIN)/shop

.PHONY: containers
containers: ## break the demo in containers and watch it with Prometheus (needs a Docker engine; minutes)
	QUORATE_CONTAINERS=1 $(GO) test -count=1 -timeout 25m -parallel 2 -v -run 'InContainers|ComposeStarts' ./deploy

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN)
