# What a person needs: `make demo` shows flannel at work, `make test` tests everything. Both take root, Linux and Go,
# and on Debian or Ubuntu install what else is missing.

GO      ?= go
LAB     := cmd/flannel-lab
# Other programs that the lab runs, as they are in real clusters.
ETCD    := $(shell sed -n 's/.*go.etcd.io\/etcd\/server\/v3 \(v[0-9.]*\).*/\1/p' $(LAB)/go.mod)
PLUGINS := v1.9.1
# The last release in which the plugins' repository had the flannel meta-plugin.
FLANNEL_PLUGIN := v0.9.1
# A Kubernetes control plane, in a module of its own because of its dependencies.
KUBE    := $(LAB)/kube
KUBERNETES := $(shell sed -n 's/.*k8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' $(KUBE)/go.mod)
# Wine with the simulated Windows machine's DLLs; its files know where they are.
WINE_HASH := $(shell { $(GO) env GOVERSION; pwd; cat dist/wine.sh pkg/hns/hnstest/wine/dll/*; } | sha256sum | cut -c1-12)
# PowerShell's grammar, by which tests read scripts for Windows.
CHECK   := dist/windows/check
CHECK_FILES := $(wildcard $(CHECK)/*.json $(CHECK)/*.mjs)
CHECK_HASH := $(shell cat $(CHECK_FILES) | sha256sum | cut -c1-12)
# All that its programs are made of, Go included.
KUBE_HASH := $(shell { $(GO) env GOVERSION; cat $(KUBE)/go.mod $(KUBE)/go.sum $(KUBE)/*.go $(KUBE)/*/*.go; } | sha256sum | cut -c1-12)

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

export CGO_ENABLED = 0
# One way of compiling for all that is built, vetted and tested: what is compiled once serves all.
export GOFLAGS := $(GOFLAGS) -trimpath

.DEFAULT_GOAL := build
.PHONY: build cross tools kube wine demo test changed test-e2e test-windows test-kube-proxy test-systems bench lint fuzz soak clean help

build: ## bin/flanneld, for this machine
	$(GO) build -ldflags '-X flannel/pkg/version.Version=$(VERSION)' -o bin/flanneld ./cmd/flanneld

# Every architecture that people run Linux nodes on; of Windows, that of its servers.
SYSTEMS := windows-amd64 linux-amd64 linux-arm64 linux-arm linux-riscv64 linux-s390x linux-ppc64le

cross: $(SYSTEMS:%=cross-%) ## dist/out/flanneld-linux-* and flanneld-windows-amd64.exe, static; one of them: cross-linux-arm64
.PHONY: $(SYSTEMS:%=cross-%)
$(SYSTEMS:%=cross-%): cross-%:
	GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) nice $(GO) build -ldflags '-s -w -X flannel/pkg/version.Version=$(VERSION)' \
		-o dist/out/flanneld-$*$(if $(filter windows-%,$*),.exe) ./cmd/flanneld

tools: bin/etcd bin/etcdutl bin/etcdctl bin/cni/flannel bin/cni/bridge bin/cni/host-local bin/cni/loopback bin/cni/portmap ## the lab and what it runs
	cd $(LAB) && $(GO) build -o ../../bin/flannel-lab .

kube: bin/kube bin/render bin/kube-proxy ## a Kubernetes API server and kube-proxy for tests and demo --kube; the first time takes minutes

demo: ## three nodes on this machine, and what flannel does for them, in half a minute
	@dist/setup.sh $(if $(findstring -windows,$(ARGS)),test,demo)
	@$(MAKE) --no-print-directory build tools $(if $(findstring -kube,$(ARGS)),kube) $(if $(findstring -windows,$(ARGS)),wine cross-windows-amd64)
	@bin/flannel-lab demo $(ARGS)

# The tests of the daemon run with the race detector, which takes a C compiler. The end-to-end tests run the daemon as
# it is shipped.
test: ## all tests, those of the kernel and the end-to-end ones included; the first time takes some 20 minutes
	@dist/setup.sh test
	@$(MAKE) --no-print-directory -j2 kube test-without-kube
	@$(MAKE) --no-print-directory -j3 test-with-kube test-clusters test-systems

# A branch or commit; nothing is fetched.
BASE ?=

changed: ## lint and tests of the packages that differ from BASE (origin/main) and of those that import them; no end-to-end tests
	@dist/setup.sh test
	@MAKE='$(MAKE) --no-print-directory' GO='$(GO)' BASE='$(BASE)' LIGHT='$(LIGHT)' HEAVY='$(HEAVY)' WITH_KUBE='$(WITH_KUBE)' dist/changed.sh

test-e2e: ## the end-to-end tests alone, two minutes of soak included
	@dist/setup.sh test
	@$(MAKE) --no-print-directory -j2 build tools wine kube bin/powershell/parse.mjs
	@$(MAKE) --no-print-directory test-clusters

bench: ## what the daemon costs at 1,000 to 50,000 peers, beside the kernel alone; more than ten minutes, ARGS=--quick for a first look
	@dist/setup.sh demo
	@$(MAKE) --no-print-directory build tools $(if $(findstring -quick,$(ARGS)),$(findstring kube,$(ARGS)),kube)
	@bin/flannel-lab bench $(ARGS)

# Tests wait more than they work: more of them at the same time than there are cores. Vet is a part of lint, which reads
# the clients of Kubernetes and etcd once.
TEST := test -vet=off -p 4 -parallel 4

# What of the daemon runs on Windows, under Wine. Whatever needs the clients of Kubernetes and etcd goes without the race
# detector, which makes a compiler's work double.
WINDOWS := GOOS=windows $(GO) $(TEST) -timeout 20m -overlay bin/wine/overlay.json -exec '$(CURDIR)/bin/wine/run'
LIGHT := ./backend/... ./pkg/... ./subnet ./subnet/patience
HEAVY := ./cmd/flanneld

test-windows: wine ## the tests of what runs on Windows, under Wine; of one package: LIGHT=./pkg/hns HEAVY=
	$(if $(LIGHT),CGO_ENABLED=1 CC=x86_64-w64-mingw32-gcc-win32 $(WINDOWS) -race $(LIGHT))
	$(if $(HEAVY),CGO_ENABLED=0 $(WINDOWS) $(HEAVY))
	@dist/wine.sh stop

# To build kube-proxy for Windows takes minutes of two cores, which no other test has a use for.
test-kube-proxy: ## Windows' real kube-proxy beside flanneld.exe, under Wine; not part of make test
	@dist/setup.sh test
	@$(MAKE) --no-print-directory -j2 build tools wine cross-windows-amd64 bin/kube bin/kube-proxy.exe
	cd $(LAB) && $(GO) test -count=1 -v -timeout 10m -tags kubeproxy -run '^TestKubeProxy' ./e2e
	@dist/wine.sh stop

wine: bin/wine/run bin/cni/flannel.exe bin/cni/host-local.exe bin/cni/win-bridge.exe bin/cni/win-overlay.exe ## for tests: what programs for Windows run in, and the CNI plugins among them

# Kubernetes takes minutes to build where it never was: meanwhile, all that does without it. Then the tests that need it,
# and those of whole clusters, side by side. Whichever fails ends the run.
WITH_KUBE := ./subnet/kube/... ./dist/...
RACE := CGO_ENABLED=1 $(GO) $(TEST) -race -timeout 20m
.PHONY: test-without-kube test-with-kube test-clusters test-race lint-kube
test-without-kube:
	@$(MAKE) --no-print-directory build tools wine bin/powershell/parse.mjs
	@$(MAKE) --no-print-directory lint
	$(RACE) $$($(GO) list ./... | grep -v -x -F "$$($(GO) list $(WITH_KUBE))")
	@$(MAKE) --no-print-directory test-windows
test-with-kube: lint-kube
	$(RACE) $(WITH_KUBE)
# Go's cache of results does not know of the programs in bin/, which lie outside of this module: each run is a new one.
test-clusters: cross-windows-amd64
	cd $(LAB) && $(GO) $(TEST) -count=1 -timeout 40m ./...

# For dist/changed.sh.
test-race:
	$(RACE) $(PACKAGES)

# What knows of system calls, for an architecture with other numbers of these, one with words of 32 bits and one whose first
# byte is the highest. All of it for all of them takes minutes, and is for make cross.
test-systems: ## compiles what knows of system calls for other architectures of Linux
	set -e; for arch in arm64 arm s390x; do GOOS=linux GOARCH=$$arch nice $(GO) build ./pkg/dataplane/... ./pkg/file ./pkg/firewall ./pkg/sandbox ./pkg/underlay; done

# Pinned here, so that neither module's dependencies have it.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

lint: ## gofmt, go vet and staticcheck for Linux and Windows, go.mod
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'gofmt would change:'; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./... && GOOS=windows $(GO) vet $(LIGHT)
	cd $(LAB) && $(GO) vet -tags kubeproxy ./...
	GOBIN=$(CURDIR)/bin $(GO) install $(STATICCHECK)
	bin/staticcheck ./... && GOOS=windows bin/staticcheck $(LIGHT) && cd $(LAB) && $(CURDIR)/bin/staticcheck -tags kubeproxy ./...
	$(GO) mod tidy -diff && cd $(LAB) && $(GO) mod tidy -diff

# Without vet, which reads all of Kubernetes: two minutes for 700 lines.
lint-kube: kube
	cd $(KUBE) && $(GO) mod tidy -diff

FUZZTIME ?= 30s

# Go's fuzzer sometimes fails at the end of its time for no other reason than that ("context deadline exceeded"): what
# counts is an input that it has found.
fuzz: ## each fuzz target for FUZZTIME (30s); what they find becomes a seed in testdata/fuzz
	@for file in $$(git ls-files '*_test.go' | xargs grep -l '^func Fuzz'); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\).*/\1/p' $$file); do \
			echo "$$(dirname $$file) $$target"; \
			out=$$(cd $$(dirname $$file) && $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) . 2>&1) && continue; \
			echo "$$out" | tail -40; \
			echo "$$out" | grep -q '^    context deadline exceeded' || exit 1; \
		done; \
	done

SOAKTIME ?= 30m
# SEED repeats what a former run did.
SEED ?=

soak: ## a small cluster in a bad year: peers, drift, kills and outages at random against a model, for SOAKTIME (30m)
	@dist/setup.sh test
	@$(MAKE) --no-print-directory build tools
	cd $(LAB) && SOAK=$(SOAKTIME) SOAK_SEED=$(SEED) $(GO) test -count=1 -v -timeout 0 ./soak
	cd $(LAB) && SOAK=$(SOAKTIME) $(GO) test -count=1 -v -timeout 30m -run UnderChurn ./e2e

clean: ## removes what was built
	rm -rf bin dist/out

help: ## these targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 17

# A tool is built when it is missing or when the stamp of its version is newer.
stamp = @mkdir -p bin && rm -f bin/.$(1)-* && touch $@

bin/.etcd-$(ETCD):
	$(call stamp,etcd)
bin/.plugins-$(PLUGINS):
	$(call stamp,plugins)
bin/.flannel-plugin-$(FLANNEL_PLUGIN):
	$(call stamp,flannel-plugin)

bin/.wine-$(WINE_HASH):
	$(call stamp,wine)
bin/wine/run: bin/.wine-$(WINE_HASH)
	dist/wine.sh

bin/.powershell-$(CHECK_HASH):
	$(call stamp,powershell)
# The lock file has a checksum of each package, and none of their scripts runs.
bin/powershell/parse.mjs: bin/.powershell-$(CHECK_HASH)
	mkdir -p $(@D) && cp $(CHECK_FILES) $(@D) && cd $(@D) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && touch parse.mjs

bin/.kube-$(KUBE_HASH):
	$(call stamp,kube)

# Nice to the tests beside it. Nobody debugs these: without optimization, inlining and DWARF they are there in two thirds of the time.
KUBE_FLAGS := -gcflags='all=-N -l -dwarf=false'

bin/kube: bin/.kube-$(KUBE_HASH)
	cd $(KUBE) && nice $(GO) build $(KUBE_FLAGS) -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' -o ../../../$@ .
bin/render: bin/.kube-$(KUBE_HASH) bin/kube
	cd $(KUBE) && nice $(GO) build $(KUBE_FLAGS) -ldflags '-s -w' -o ../../../$@ ./render

bin/kube-proxy: bin/.kube-$(KUBE_HASH) bin/kube
	cd $(KUBE) && nice $(GO) build $(KUBE_FLAGS) -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' \
		-o ../../../$@ k8s.io/kubernetes/cmd/kube-proxy
bin/kube-proxy.exe: bin/.kube-$(KUBE_HASH) bin/kube
	cd $(KUBE) && GOOS=windows GOARCH=amd64 nice $(GO) build $(KUBE_FLAGS) -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' \
		-o ../../../$@ k8s.io/kubernetes/cmd/kube-proxy

bin/etcd: bin/.etcd-$(ETCD)
	cd $(LAB) && $(GO) build -o ../../$@ go.etcd.io/etcd/server/v3
bin/etcdutl: bin/.etcd-$(ETCD)
	cd $(LAB) && $(GO) build -o ../../$@ go.etcd.io/etcd/etcdutl/v3
bin/etcdctl: bin/.etcd-$(ETCD)
	cd $(LAB) && $(GO) build -o ../../$@ go.etcd.io/etcd/etcdctl/v3

install = GOBIN=$(CURDIR)/bin/cni $(GO) install github.com/containernetworking/plugins/plugins/$(1)/$(@F)@$(2) && touch $@

# Go installs for another system only into GOPATH.
cross-install = GOPATH=$(CURDIR)/bin/.windows GOMODCACHE=$$($(GO) env GOMODCACHE) GOOS=windows GOARCH=amd64 \
	$(GO) install github.com/containernetworking/plugins/plugins/$(1)/$(@F:.exe=)@$(2) && mv bin/.windows/bin/windows_amd64/$(@F) $@ && touch $@

bin/cni/flannel.exe: bin/.flannel-plugin-$(FLANNEL_PLUGIN)
	@mkdir -p $(@D)
	$(call cross-install,meta,$(FLANNEL_PLUGIN))
bin/cni/win-overlay.exe bin/cni/win-bridge.exe: bin/.plugins-$(PLUGINS)
	@mkdir -p $(@D)
	$(call cross-install,main/windows,$(PLUGINS))
bin/cni/host-local.exe: bin/.plugins-$(PLUGINS)
	@mkdir -p $(@D)
	$(call cross-install,ipam,$(PLUGINS))

bin/cni/flannel: bin/.flannel-plugin-$(FLANNEL_PLUGIN)
	$(call install,meta,$(FLANNEL_PLUGIN))
bin/cni/bridge bin/cni/loopback: bin/.plugins-$(PLUGINS)
	$(call install,main,$(PLUGINS))
bin/cni/host-local: bin/.plugins-$(PLUGINS)
	$(call install,ipam,$(PLUGINS))
bin/cni/portmap: bin/.plugins-$(PLUGINS)
	$(call install,meta,$(PLUGINS))
