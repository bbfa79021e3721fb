# `make demo` shows flanneld at work, `make test` tests everything. Both need root, Linux and Go; on Debian and Ubuntu
# they install the other packages that they need.

GO      ?= go
LAB     := cmd/flannel-lab
# Programs of others that the lab runs, unmodified.
ETCD    := $(shell sed -n 's/.*go.etcd.io\/etcd\/server\/v3 \(v[0-9.]*\).*/\1/p' $(LAB)/go.mod)
PLUGINS := v1.9.1
# The last release of the CNI plugins that includes a flannel plugin. Tests compare ours with it, and replace it.
FLANNEL_PLUGIN := v0.9.1
# A Kubernetes control plane. It is a module of its own because of its dependencies.
KUBE    := $(LAB)/kube
# The container runtime of the nodes of a cluster.
CONTAINERD := v2.2.9
KUBERNETES := $(shell sed -n 's/.*k8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' $(KUBE)/go.mod)
# Everything that bin/wine is made of. Its files contain their own path.
WINE_HASH := $(shell { $(GO) env GOVERSION; pwd; cat dist/wine.sh internal/test/hnstest/wine/dll/*; } | sha256sum | cut -c1-12)
# What renders the picture of the demo.
PICTURE := dist/demo
PICTURE_FILES := $(wildcard $(PICTURE)/*.json $(PICTURE)/*.mjs)
PICTURE_HASH := $(shell cat $(PICTURE_FILES) | sha256sum | cut -c1-12)
# Without optimization, inlining and DWARF, Kubernetes is built in two thirds of the time. The standard library, in which it
# spends most of the time, is in the cache already.
KUBE_FLAGS := -gcflags='all=-N -l -dwarf=false' -gcflags='std='
# Everything that bin/kube, bin/helm and the programs of Kubernetes' end-to-end tests are made of.
KUBE_HASH := $(shell { $(GO) env GOVERSION; echo "$(KUBE_FLAGS)"; cat $(KUBE)/go.mod $(KUBE)/go.sum $(KUBE)/*.go $(KUBE)/*/*.go; } | sha256sum | cut -c1-12)
# The DNS server of a cluster in which Kubernetes' end-to-end tests run: a module of its own, too.
COREDNS := $(LAB)/coredns
COREDNS_HASH := $(shell { $(GO) env GOVERSION; cat $(COREDNS)/go.mod $(COREDNS)/go.sum $(COREDNS)/*.go; } | sha256sum | cut -c1-12)

# The variables PLAN_…: which tests a change needs, by cmd/flannel-tests. The calls of make in `make test` have
# them. They are read here, because prerequisites are expanded where they stand.
PLAN ?=
ifneq ($(PLAN),)
include $(PLAN)
endif

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
# What the linker writes into the programs.
STAMP   := -X flannel/pkg/version.Version=$(VERSION) -X flannel/pkg/version.Commit=$(COMMIT)

export CGO_ENABLED = 0
# The same flags for building, vetting and testing, so that they share Go's build cache.
export GOFLAGS := $(GOFLAGS) -trimpath -buildvcs=false

.DEFAULT_GOAL := build
.PHONY: build plugin man completions cross windows-zip windows-cni release packages release-deps test-release pins pins-debian pins-go pins-windows audit tools kube cluster conformance wine demo demo-svg test changed test-e2e test-cluster test-kernels test-former test-windows test-kube-proxy test-systems night bench lint fuzz soak stress clean help

build: ## build bin/flanneld for this machine
	$(GO) build -ldflags '$(STAMP)' -o bin/flanneld ./cmd/flanneld

# The CNI plugin is a program of its own, which is started for every pod.
RELEASE := -ldflags '-s -w $(STAMP)'

plugin: ## build bin/cni/flannel, the CNI plugin
	@mkdir -p bin/cni
	$(GO) build $(RELEASE) -o bin/cni/flannel ./cmd/flannel

# The architectures of Linux nodes and of Windows Server.
SYSTEMS := windows-amd64 linux-amd64 linux-arm64 linux-arm linux-riscv64 linux-s390x linux-ppc64le

cross: $(SYSTEMS:%=cross-%) ## build static binaries of daemon and CNI plugin for all systems in dist/out; for one system: cross-linux-arm64
.PHONY: $(SYSTEMS:%=cross-%)
$(SYSTEMS:%=cross-%): cross-%:
	GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) sh -ec ' \
		for name in flanneld flannel; do nice $(GO) build -ldflags "-s -w $(STAMP)" \
		-o dist/out/$$name-$*$(if $(filter windows-%,$*),.exe) ./cmd/$$name; done'

K := dist/out/k
CNI_WINDOWS := bin/cni/host-local.exe bin/cni/win-bridge.exe bin/cni/win-overlay.exe

windows-zip: cross-windows-amd64 $(CNI_WINDOWS) ## dist/out/flannel-windows-amd64.zip: what of ours a Windows node needs in C:\k
	rm -rf $(K) && mkdir -p $(K)/cni
	cp dist/out/flanneld-windows-amd64.exe $(K)/flanneld.exe
	cp dist/out/flannel-windows-amd64.exe $(K)/cni/flannel.exe
	cp $(CNI_WINDOWS) $(K)/cni
	cp LICENSE Documentation/windows-quickstart.md dist/windows/*.ps1 $(K)
	rm -f dist/out/flannel-windows-amd64.zip && cd $(K) && python3 -m zipfile -c ../flannel-windows-amd64.zip *

PLUGINS_LINUX := bridge host-local loopback portmap bandwidth tuning macvlan ipvlan

man: ## write the man pages into dist/out/man
	$(GO) test -vet=off -count=1 -ldflags '-X flannel/pkg/version.Version=$(VERSION)' -run '^TestManPages$$' ./cmd/flanneld -man '$(CURDIR)/dist/out/man'

completions: build ## write the shells' completions into dist/out/completions
	@mkdir -p dist/out/completions
	bin/flanneld completion bash >dist/out/completions/flanneld
	bin/flanneld completion zsh >dist/out/completions/_flanneld
	bin/flanneld completion fish >dist/out/completions/flanneld.fish

# The name of the images in the registry, without a tag.
IMAGE ?= flanneld
# The packages of Debian for the images.
PINS  ?= $(CURDIR)/cmd/flannel-release/debian.json
# The time of the commit, in seconds since 1970; that of all files of a release.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
MAKE_RELEASE := cd cmd/flannel-release && $(GO) run . -version '$(VERSION)' -commit '$(COMMIT)' -image '$(IMAGE)' -time '$(SOURCE_DATE_EPOCH)' \
	-systems '$(SYSTEMS)' -pins '$(PINS)'

# The Go of releases, which need not be that of PATH: the latest fixes, and the same bytes on every machine.
RELEASE_GO ?= go1.26.11
release packages release-deps audit: export GOTOOLCHAIN = $(RELEASE_GO)

release: cross windows-zip man completions ## everything of a release in dist/out/release: make release VERSION=v1.2.3 IMAGE=registry.example.com/flanneld
	$(MAKE_RELEASE) make

# Of the programs, man pages and completions that make release has built.
packages:
	$(MAKE_RELEASE) packages

release-deps: ## download what make release needs from the network: Go, its modules, Windows' CNI plugins, and Debian's packages for the images
	$(GO) mod download
	cd cmd/flannel-release && $(GO) mod download
	$(MAKE) --no-print-directory windows-cni
	$(MAKE_RELEASE) fetch

# Those that are there may be of another Go, or of another machine.
windows-cni:
	rm -f $(CNI_WINDOWS)
	$(MAKE) --no-print-directory $(CNI_WINDOWS)

pins: pins-debian pins-go pins-windows ## renew the packages of Debian for the images, the Go for releases, and the digest of Windows' base image

pins-debian:
	$(MAKE_RELEASE) pins

pins-windows:
	$(MAKE_RELEASE) base

# The latest of those with the same language as go.mod.
pins-go:
	latest=$$($(GO) list -m -versions go | tr ' ' '\n' | grep -E "^$$(sed -n 's/^go \(1\.[0-9]*\).*/\1/p' go.mod)\.[0-9]+$$" | tail -n 1) && \
		[ -n "$$latest" ] && sed -i "s/^RELEASE_GO ?= .*/RELEASE_GO ?= go$$latest/" Makefile

# Two systems are enough to see that a release is whole and the same each time.
test-release: ## make a release twice, compare and check all files, and install it in virtual machines
	@dist/setup.sh test
	@$(MAKE) --no-print-directory bin/etcd bin/etcdctl $(PLUGINS_LINUX:%=bin/cni/%)
	cmd/flannel-release/make.sh $(CURDIR)/dist/out/made $(CURDIR)/dist/out/later
	cd cmd/flannel-release && $(GO) test -vet=off -count=1 . -args -made $(CURDIR)/dist/out/made
	dist/vm.sh fetch $$(dist/vm.sh choose)
	@$(MAKE) --no-print-directory -j2 test-release-lifecycle test-release-machines

.PHONY: test-release-if-changed test-release-files test-release-lifecycle test-release-machines
# After the lanes, whose tests use plugins that it downloads again.
test-release-if-changed: $(if $(PLAN_RELEASE),test-release-files)
test-release-files: bin/etcd bin/etcdctl $(PLUGINS_LINUX:%=bin/cni/%)
	cmd/flannel-release/make.sh $(CURDIR)/dist/out/made
	cd cmd/flannel-release && $(GO) test -vet=off -count=1 . -args -made $(CURDIR)/dist/out/made
test-release-lifecycle:
	VM_TIMEOUT=5400 dist/vm.sh $$(dist/vm.sh choose) cmd/flannel-release/lifecycle.sh dist/out/made dist/out/later
test-release-machines:
	VM_TIMEOUT=5400 dist/vm.sh $$(dist/vm.sh choose) cmd/flannel-release/machines.sh dist/out/made/*.deb

# Go's database of vulnerabilities: a module, so that it comes from where all modules come from.
VULNDB ?= latest

audit: windows-cni cross windows-zip ## check the licences of linked modules, and look for known vulnerabilities in what a release contains
	$(MAKE_RELEASE) licences
	cd cmd/flannel-release && $(GO) build -o ../../bin/govulncheck golang.org/x/vuln/cmd/govulncheck
	database=$$($(GO) mod download -json golang.org/x/vulndb@$(VULNDB)) && echo "$$database" | grep '"Version"' && \
		database=file://$$(echo "$$database" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/data/osv && failed= && \
		for system in linux windows; do echo "$$system:"; GOOS=$$system bin/govulncheck -db "$$database" ./cmd/flanneld ./cmd/flannel || failed=yes; done && \
		for plugin in $(CNI_WINDOWS); do echo "$$plugin:"; bin/govulncheck -db "$$database" -mode binary $$plugin || failed=yes; done && \
		[ -z "$$failed" ]

tools: plugin bin/etcd bin/etcdutl bin/etcdctl bin/cni-former/flannel $(PLUGINS_LINUX:%=bin/cni/%) ## build the lab, etcd and the CNI plugins
	cd $(LAB) && $(GO) build -o ../../bin/flannel-lab .

kube: bin/kube bin/render bin/kube-proxy bin/kubectl bin/helm ## build a Kubernetes API server, kube-proxy, kubectl and Helm, for tests and the demo with --kube; takes minutes the first time

cluster: ## build a Kubernetes cluster for flannel-lab cluster: containerd, kubelet and the images of this tree; takes minutes the first time
	@dist/progress.sh 'flanneld, CNI plugins, lab' $(MAKE) --no-print-directory build tools
	@dist/progress.sh 'containerd and runc' $(MAKE) --no-print-directory $(CONTAINERD_PROGRAMS) bin/runc/unpacked
	@dist/progress.sh 'Kubernetes' $(MAKE) --no-print-directory kube
	@dist/progress.sh 'images' $(MAKE) --no-print-directory cluster-images

# The images of this tree. Debian's packages come from bin/debian, if they are there.
.PHONY: cluster-images
cluster-images: ARCH = $(shell $(GO) env GOARCH)
cluster-images:
	@mkdir -p bin/cluster
	$(MAKE) cross-linux-$(ARCH)
	cd $(LAB) && $(GO) build -ldflags '-s -w' -o ../../bin/cluster/pod ./cluster/pod
	cd cmd/flannel-release && $(GO) run . -version '$(VERSION)' -commit '$(COMMIT)' -time '$(SOURCE_DATE_EPOCH)' -systems linux-$(ARCH) -pins '$(PINS)' lab '$(CURDIR)/bin/cluster'

# Images, chart and manifests as a release has them, for the tests of upgrades: of the former release, and of this tree,
# whose images cluster-images has built. The versions are those in the commands of Documentation/upgrade.md.
.PHONY: cluster-releases
CLUSTER_RELEASE = $(GO) run . -commit '$(COMMIT)' -image registry.example.com/flanneld -time '$(SOURCE_DATE_EPOCH)' \
	-systems linux-$(ARCH) -pins '$(PINS)'
cluster-releases: ARCH = $(shell $(GO) env GOARCH)
cluster-releases:
	rm -rf bin/cluster/v1.2.3 bin/cluster/v1.2.4
	$(former_source)
	cd bin/former/source && for name in flanneld flannel; do nice $(GO) build -ldflags '-s -w -X flannel/pkg/version.Version=$(FORMER)' \
		-o dist/out/$$name-linux-$(ARCH) ./cmd/$$name || exit; done
	cd cmd/flannel-release && $(CLUSTER_RELEASE) -version v1.2.3 -source $(CURDIR)/bin/former/source images $(CURDIR)/bin/cluster/v1.2.3
	cd cmd/flannel-release && $(CLUSTER_RELEASE) -version v1.2.4 images $(CURDIR)/bin/cluster/v1.2.4
	rm -rf bin/former/source

conformance: ## run Kubernetes' own end-to-end tests of the network on a cluster; more than ten minutes the first time; ARGS='--backend host-gw --set network'
	@dist/setup.sh demo
	@$(MAKE) --no-print-directory cluster
	@dist/progress.sh "Kubernetes' end-to-end tests" $(MAKE) --no-print-directory bin/cluster/ginkgo bin/cluster/conformance.tar
	@bin/flannel-lab conformance $(ARGS)

# The configurations of Documentation/conformance.md, for make night.
.PHONY: conformance-all
conformance-all:
	@$(MAKE) --no-print-directory conformance ARGS='--set network'
	@$(MAKE) --no-print-directory conformance ARGS='--set network --proxy-mode nftables --enable-nftables --guard enforce'
	@$(MAKE) --no-print-directory conformance ARGS='--set network --backend host-gw'

demo: ## show flanneld on three nodes on this machine, in ten seconds once it is built; ARGS=--kube, ARGS=--cluster, ARGS='--windows 1'
	@dist/setup.sh $(if $(findstring -windows,$(ARGS)),test,demo)
	@$(MAKE) --no-print-directory $(if $(findstring -cluster,$(ARGS)),cluster,build tools) $(if $(findstring -kube,$(ARGS)),kube) $(if $(findstring -windows,$(ARGS)),wine cross-windows-amd64)
	@bin/flannel-lab demo $(ARGS)

demo-svg: ## run the demo and renew its picture, Documentation/demo.svg
	@dist/setup.sh test
	@$(MAKE) --no-print-directory build tools bin/picture/render.mjs
	bin/flannel-lab demo -record bin/demo.cast
	node bin/picture/render.mjs bin/demo.cast Documentation/demo.svg

# The commit to compare with, or a branch. Default: for `make changed` origin/main, or main; else the commit of .ci/green.
BASE ?=
plan = @mkdir -p bin && $(GO) run ./cmd/flannel-tests -of $(1) -base '$(BASE)' -kernel $(KERNEL_OF_COMMIT) >bin/plan.mk
# $(1): how many of these run at once; the first ones start first. What the virtual machine needs is built before: on a new
# machine the lanes build for half an hour, and make would start the longest of them after that.
lanes = @rm -f bin/tests/idle && $(MAKE) --no-print-directory PLAN=bin/plan.mk -j2 test-machine-programs && \
	$(MAKE) --no-print-directory PLAN=bin/plan.mk -j$(1) $(LANES)

test: ## run the tests: all packages, all nodes end to end, the kernel's in a virtual machine; some 30 minutes on two processors
	@dist/setup.sh test
	$(call plan,test)
	$(call lanes,3)
	@$(MAKE) --no-print-directory PLAN=bin/plan.mk test-release-if-changed
	@$(if $(BASE),,$(GO) run ./cmd/flannel-tests -passed bin/green -began "$$(sed -n 's/^PLAN_HEAD := //p' bin/plan.mk)" -kernel "$$(cat bin/tests/series)" || true)

changed: ## lint and test what differs from BASE (origin/main), test what imports it, and run the end-to-end tests that belong to it
	@dist/setup.sh test
	$(call plan,changed)
	$(call lanes,8)

night: ## run everything that make test leaves out, too: hours; the results are in bin/night
	@dist/setup.sh test
	@MAKE='$(MAKE) --no-print-directory' dist/night.sh

.PHONY: test-everything
test-everything:
	$(call plan,night)
	$(call lanes,3)

test-cluster: ## test installation, upgrades and removal on Kubernetes clusters with kubelet and containerd, and restarts, reboots, deleted nodes
	@dist/setup.sh test
	@$(MAKE) --no-print-directory cluster
	@$(MAKE) --no-print-directory cluster-releases
	cd $(LAB) && $(GO) $(TEST) -count=1 -v -tags cluster -run '^TestCluster' . ./cluster

test-e2e: ## run the end-to-end tests alone, two minutes of soak included
	@dist/setup.sh test
	@$(MAKE) --no-print-directory -j2 build tools wine kube cross-windows-amd64 bin/prometheus/unpacked
	cd $(LAB) && $(GO) $(TEST) -count=1 ./...

# The kernels under which tests run: Debian's packages linux-image-<series>.*-amd64.
KERNELS := 6.1 6.12
# A virtual machine is slow, so what it runs is compiled before. The tag is for tests that need modules that not every
# kernel has.
.PHONY: test-programs
test-programs: build tools bin/strongswan/unpacked
	@mkdir -p bin/tests
	$(GO) test -vet=off -tags kernels -c -o bin/tests/ ./pkg/linux ./pkg/linux/firewall ./pkg/linux/guard ./pkg/linux/underlay
	cd $(LAB) && $(GO) test -vet=off -tags kernels -c -o ../../bin/tests/ ./e2e

test-kernels: ## run the tests that concern the kernel on Debian's kernels 6.1 and 6.12 in virtual machines; one kernel: KERNELS=6.1
	@dist/setup.sh test
	@$(MAKE) --no-print-directory test-programs
	@dist/vm.sh fetch $(KERNELS)
	@$(MAKE) --no-print-directory -j2 $(KERNELS:%=test-kernel-%)

# Even or odd, by the last digit of the commit.
KERNEL_OF_COMMIT = $(if $(filter %0 %2 %4 %6 %8 %a %c %e,$(COMMIT)),$(firstword $(KERNELS)),$(lastword $(KERNELS)))

# A virtual machine has one processor, so two are busy at once: of two kernels, or of one.
.PHONY: $(KERNELS:%=test-kernel-%)
$(KERNELS:%=test-kernel-%): test-kernel-%:
	@MACHINES=$(if $(word 2,$(KERNELS)),1,2) dist/kernels.sh $* all

bench: ## measure CPU, memory and delays with 1,000 to 50,000 peers; more than ten minutes, ARGS=--quick for a first look
	@dist/setup.sh demo
	@$(MAKE) --no-print-directory build tools $(if $(findstring -quick,$(ARGS)),$(findstring kube,$(ARGS)),kube)
	@bin/flannel-lab bench $(ARGS)

# Tests wait most of the time, so more of them run at once than there are cores. lint runs vet, so that the clients of
# Kubernetes and etcd are type-checked only once.
# The limit is for a package that hangs, on any machine: on two cores beside much other work, the tests of dist took more
# than 20 minutes. A test program that has reached it prints what each goroutine waits for.
TEST_TIMEOUT ?= 2h
TEST := test -vet=off -p 4 -parallel 4 -timeout $(TEST_TIMEOUT)

# The tests for Windows, which run under Wine. Packages with the clients of Kubernetes and etcd (HEAVY) are tested without
# the race detector, with which all of these clients would be compiled a second time.
WINDOWS := GOOS=windows $(GO) $(TEST) -overlay bin/wine/overlay.json -exec '$(CURDIR)/bin/wine/test'
LIGHT := ./backend ./cmd/flannel $(addprefix ./internal/test/,eventually filetest hnstest/... logtest managertest nettest) ./pkg/... ./subnet
HEAVY := ./cmd/flanneld
# These are tested by make test without it, too: their tests are those that run on Linux, with it. Under Wine it needs
# 155 seconds of a processor for pkg/windows, instead of 24.
SAME  := ./pkg/windows

# test-windows has the prefix bin/wine/used to itself, because its tests install services. It stops Wine there before the
# tests (a run that failed leaves programs) and after them. The lab, the tests of hnstest/wine and make stress use copies of
# bin/wine/prefix. They take no lock: setting up Wine while they run deletes bin/wine/run, test and overlay.json, which they
# use. The lock is on the directory bin of this tree. The make that runs under the lock gets an empty WINE_LOCK: with another
# flock, the set-up of Wine would wait for its own caller.
WINE_LOCK = flock --close bin/.
test-windows: ## run the tests for Windows under Wine; of one package: LIGHT=./pkg/windows/hns HEAVY=
	@+mkdir -p bin
	@flock --nonblock bin/. true || echo 'make test-windows: waiting for another make that uses the Wine of this tree'
	@$(WINE_LOCK) $(MAKE) --no-print-directory WINE_LOCK= test-windows-alone

.PHONY: test-windows-alone
test-windows-alone: wine
	@dist/wine.sh stop
	$(if $(LIGHT),CGO_ENABLED=1 CC=x86_64-w64-mingw32-gcc-win32 $(WINDOWS) -race $(LIGHT))
	$(if $(HEAVY),CGO_ENABLED=0 $(WINDOWS) $(HEAVY))
	@dist/wine.sh stop

# Not a part of make test, because building kube-proxy for Windows takes minutes and no other test needs it.
# There is no release yet: the commit before the first one would have been made.
FORMER ?= $(shell git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null || echo b606eda)

define former_source
	rm -rf bin/former && mkdir -p bin/former/source
	git archive --output=bin/former/source.tar $(FORMER) || { echo 'the former release, $(FORMER), is not in this clone: git fetch --unshallow --tags'; exit 1; }
	tar -x -C bin/former/source -f bin/former/source.tar
endef

test-former: ## test nodes with the former release beside nodes with this program; another one: FORMER=v1.2.3
	@dist/setup.sh test
	@$(MAKE) --no-print-directory -j2 build tools bin/kube
	$(former_source)
	cd bin/former/source && $(GO) build -ldflags '-X flannel/pkg/version.Version=$(FORMER)' -o ../flanneld ./cmd/flanneld
	rm -rf bin/former/source
	cd $(LAB) && $(GO) test -vet=off -count=1 -v -timeout 1h -tags former -run '^TestFormerRelease$$' ./e2e

test-kube-proxy: ## test Windows' real kube-proxy beside flanneld.exe under Wine; not a part of make test
	@dist/setup.sh test
	@$(MAKE) --no-print-directory -j2 build tools wine cross-windows-amd64 bin/kube bin/kube-proxy.exe
	cd $(LAB) && $(GO) test -count=1 -v -timeout 2h -tags kubeproxy -run '^TestKubeProxy' ./e2e

wine: bin/wine/run bin/cni/host-local.exe bin/cni/win-bridge.exe bin/cni/win-overlay.exe ## set up Wine and the CNI plugins for Windows, for tests
	GOOS=windows GOARCH=amd64 $(GO) build -overlay bin/wine/overlay.json $(RELEASE) -o bin/cni/flannel.exe ./cmd/flannel

# Of a whole run, three of the following run side by side, which build what they share once: nodes, a virtual machine, which
# has one processor, and one after the other all that is left. A second machine beside these leaves each so little of two
# processors that charon and etcd in it do not answer in time. Of make changed, which waits most of the time, all run at once.
WITH_WINE   := ./backend ./cmd/flannel ./cmd/flanneld ./internal/test/eventually ./internal/test/hnstest ./internal/test/hnstest/% ./internal/test/logtest ./pkg/% ./subnet
RACE        := CGO_ENABLED=1 $(GO) $(TEST) -race
PLAN_NODES  := $(filter-out -,$(PLAN_E2E))$(PLAN_LAB)
plan_kube   := $(filter $(PLAN_KUBE),$(PLAN_RACE) $(PLAN_PLAIN))
plan_wine   := $(filter $(WITH_WINE),$(PLAN_WINE))
LANES       := test-nodes test-machine test-lint test-race test-packages test-wine test-packages-of-kubernetes test-other-systems test-idle
.PHONY: $(LANES) test-machine-programs lint-kube
# Without a plan, they would test nothing and pass.
ifeq ($(PLAN),)
$(if $(filter $(filter-out test-lint,$(LANES)),$(MAKECMDGOALS)),$(error run make test or make changed))
endif

test-lint:
	@$(MAKE) --no-print-directory lint

# The tests of hnstest/wine run programs under Wine.
test-race test-packages: build tools bin/image/start $(if $(filter ./internal/test/hnstest/wine,$(PLAN_RACE) $(PLAN_PLAIN)),wine)
test-race:
	$(if $(filter-out $(PLAN_KUBE),$(PLAN_RACE)),$(RACE) $(filter-out $(PLAN_KUBE),$(PLAN_RACE)))
test-packages:
	$(if $(filter-out $(PLAN_KUBE),$(PLAN_PLAIN)),$(GO) $(TEST) $(filter-out $(PLAN_KUBE),$(PLAN_PLAIN)))

test-wine: $(if $(plan_wine),build tools wine)
	@$(if $(plan_wine),$(MAKE) --no-print-directory test-windows LIGHT='$(filter-out $(HEAVY) $(SAME),$(plan_wine))' HEAVY='$(filter $(HEAVY) $(SAME),$(plan_wine))')

# Packages in PLAN_KUBE wait until Kubernetes is built, which takes minutes the first time.
test-packages-of-kubernetes: $(if $(plan_kube),build tools bin/image/start lint-kube bin/prometheus/unpacked)
	$(if $(filter $(PLAN_KUBE),$(PLAN_RACE)),$(RACE) $(filter $(PLAN_KUBE),$(PLAN_RACE)))
	$(if $(filter $(PLAN_KUBE),$(PLAN_PLAIN)),$(GO) $(TEST) $(filter $(PLAN_KUBE),$(PLAN_PLAIN)))

# -count=1, because Go's cache of test results ignores the programs in bin/. The end-to-end tests run the daemon as it is
# shipped. They wait even more than other tests: with four at once, two processors were idle four fifths of the time.
test-nodes: $(if $(PLAN_NODES),build tools wine kube cross-windows-amd64 bin/prometheus/unpacked)
	$(if $(PLAN_LAB),cd $(LAB) && $(GO) $(TEST) -parallel 8 -count=1 $(PLAN_LAB))
	$(if $(filter-out -,$(PLAN_E2E)),cd $(LAB) && $(GO) $(TEST) -parallel 8 -count=1 -run '$(PLAN_E2E)' ./e2e)

# The tests of one kernel, of the longest ones a part: which is a matter of the commit, so that a run can be repeated. Not
# every system offers both kernels.
# It comes before the others, by its priority, which would be idle at the end: a virtual machine uses one processor only.
test-machine-programs: $(if $(filter short all,$(PLAN_KERNEL)),test-programs)
test-machine:
	@case '$(PLAN_KERNEL)' in \
	short) series=$$(dist/vm.sh choose) && dist/vm.sh fetch $$series && dist/kernels.sh $$series short && echo $(KERNEL_OF_COMMIT) >bin/tests/series ;; \
	all) series=$(KERNEL_OF_COMMIT) && { dist/vm.sh fetch $$series || { series=$$(dist/vm.sh choose) && dist/vm.sh fetch $$series; }; } && \
		WHEN_IDLE=$(CURDIR)/bin/tests/idle nice -n -10 dist/kernels.sh $$series $(if $(COMMIT),sample $(COMMIT),all) && echo $$series >bin/tests/series ;; \
	esac

# Tells test-machine that the others have ended.
test-idle: $(filter-out test-machine test-idle,$(LANES))
	@mkdir -p bin/tests && touch bin/tests/idle

test-other-systems: $(if $(PLAN_SYSTEMS),build tools)
	@$(if $(PLAN_SYSTEMS),$(MAKE) --no-print-directory test-emulated test-words)

# Packages with system calls, for one architecture with other call numbers, one with 32 bits and one that is big-endian.
# make cross compiles everything for all architectures, which takes minutes.
SYSCALLS := ./pkg/dataplane/... ./pkg/file ./pkg/linux/...
# Packages that read and write bytes in the order of the machine or of a protocol, and a word of 32 or 64 bits. An emulator
# of a processor runs their tests, but no tests in network namespaces, because those start the test program again.
BYTES      := ./pkg/linux/charon ./pkg/dataplane ./pkg/probe/path ./pkg/linux/rtnetlink ./pkg/linux/udptunnel
# The processor of a PC runs programs of 32 bits by itself, with the system calls of such a program. The kernel of 64 bits
# may refuse them XFRM.
WORDS      := ./pkg/linux/rtnetlink ./pkg/linux/sandbox ./pkg/linux/udptunnel ./pkg/linux/underlay
WORD_TESTS := ^(TestRulesOfTheKernel|TestLegacyDigest|TestWithoutComments|TestFirstSync|TestRestart|TestLower|TestIPIPOfAnotherNetwork|TestTUNRestart|TestWireGuard)$$
WORD_E2E   := ^(TestPodsOfTwoNodesTalk|TestUDPDualStack|TestWireGuardOutlivesTheDaemon)$$

.PHONY: test-emulated test-words $(addprefix test-bytes-,aarch64 arm s390x)
test-systems: tools ## compile for other architectures of Linux, run what concerns bytes in an emulator, and flanneld with 32 bits
	@dist/setup.sh test
	@$(MAKE) --no-print-directory test-emulated test-words

test-emulated: $(addprefix test-bytes-,aarch64 arm s390x)

$(addprefix test-bytes-,aarch64 arm s390x): test-bytes-%:
	GOARCH=$(subst aarch64,arm64,$*) CGO_ENABLED=0 nice $(GO) build $(SYSCALLS)
	FLANNEL_EMULATED=1 GOARCH=$(subst aarch64,arm64,$*) CGO_ENABLED=0 nice $(GO) $(TEST) -exec qemu-$* $(BYTES)

# LAB_FLANNELD is the flanneld that the end-to-end tests run. The tools must be built: end-to-end tests that run at the same
# time use them.
test-words:
	GOARCH=386 CGO_ENABLED=0 nice $(GO) build -o bin/386/flanneld ./cmd/flanneld
	GOARCH=386 CGO_ENABLED=0 nice $(GO) $(TEST) $(WORDS)
	GOARCH=386 CGO_ENABLED=0 nice $(GO) $(TEST) -run '$(WORD_TESTS)' ./pkg/linux ./pkg/linux/firewall
	cd $(LAB) && LAB_FLANNELD=$(CURDIR)/bin/386/flanneld $(GO) $(TEST) -count=1 -run '$(WORD_E2E)' ./e2e

# Pinned here rather than in go.mod, so that they are not among the dependencies.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT  := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

# All build tags of the lab.
LAB_TAGS := former,kubeproxy,kernels,cluster

# Of make changed, staticcheck reads only the packages that have changed; vet reads all, and so finds what does not compile.
PLAN_LINT    ?= ./... ./$(LAB)/... ./cmd/flannel-release/...
lint_linux   := $(filter-out ./$(LAB)/... ./cmd/flannel-release/...,$(PLAN_LINT))
lint_windows := $(if $(filter ./...,$(PLAN_LINT)),$(LIGHT),$(filter-out $(HEAVY),$(plan_wine)))

lint: ## run gofmt, go vet and staticcheck for Linux and Windows, and check go.mod and the workflows for GitHub
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'gofmt would change:'; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./... && GOOS=windows $(GO) vet $(LIGHT)
	cd $(LAB) && $(GO) vet -tags $(LAB_TAGS) ./...
	cd cmd/flannel-release && $(GO) vet ./...
	GOBIN=$(CURDIR)/bin $(GO) install $(STATICCHECK)
	GOBIN=$(CURDIR)/bin $(GO) install $(ACTIONLINT)
	bin/actionlint -shellcheck= -pyflakes= .github/workflows/*.yml
	$(if $(lint_linux),bin/staticcheck $(lint_linux))
	$(if $(lint_windows),GOOS=windows bin/staticcheck $(lint_windows))
	$(if $(filter ./$(LAB)/...,$(PLAN_LINT)),cd $(LAB) && $(CURDIR)/bin/staticcheck -tags $(LAB_TAGS) ./...)
	$(if $(filter ./cmd/flannel-release/...,$(PLAN_LINT)),cd cmd/flannel-release && $(CURDIR)/bin/staticcheck ./...)
	$(GO) mod tidy -diff && cd $(LAB) && $(GO) mod tidy -diff
	cd cmd/flannel-release && $(GO) mod tidy -diff

# Without vet, which would type-check all of Kubernetes: two minutes for 700 lines.
lint-kube: kube
	cd $(KUBE) && $(GO) mod tidy -diff

FUZZTIME   ?= 30s
# Executions of a target per second of processor time, below which it fails; 0 accepts every rate.
FUZZFLOOR  ?= 1000
# The inputs that earlier runs found, with which a run starts.
FUZZCORPUS ?= $(HOME)/.cache/flannel-fuzz

fuzz: ## run each fuzz target for FUZZTIME (30s); inputs that fail are kept in testdata/fuzz, others in FUZZCORPUS
	@GO='$(GO)' FUZZTIME='$(FUZZTIME)' FUZZFLOOR='$(FUZZFLOOR)' FUZZCORPUS='$(FUZZCORPUS)' dist/fuzz.sh

SOAKTIME ?= 30m
# The seed that a former run printed; repeats its actions.
SEED ?=

soak: ## test random changes, drift, kills and outages against a model, for SOAKTIME (30m); SEED repeats a run
	@dist/setup.sh test
	@$(MAKE) --no-print-directory build tools
	cd $(LAB) && SOAK=$(SOAKTIME) SOAK_SEED=$(SEED) $(GO) test -count=1 -v -timeout 0 ./soak
	cd $(LAB) && SOAK=$(SOAKTIME) $(GO) test -count=1 -v -timeout 2h -run UnderChurn ./e2e

# The tests of a package, or of those of a pattern: how often each, a regular expression of their names, yes for endless
# loops beside them, how many test programs run at once, and windows for programs under Wine.
PACKAGE ?=
COUNT   ?= 50
RUN     ?=
LOAD    ?=
JOBS    ?=
SYSTEM  ?=

stress: ## run the tests of a package COUNT times and print failures: PACKAGE=./pkg/linux/firewall or e2e; RUN=TestX, LOAD=yes, JOBS=4, SYSTEM=windows
	@$(if $(filter e2e ./cmd/flannel-lab% cmd/flannel-lab%,$(PACKAGE)),$(MAKE) --no-print-directory build tools)
	@$(if $(filter windows,$(SYSTEM)),$(MAKE) --no-print-directory wine)
	@GO='$(GO)' PACKAGE='$(PACKAGE)' COUNT='$(COUNT)' RUN='$(RUN)' LOAD='$(LOAD)' JOBS='$(JOBS)' SYSTEM='$(SYSTEM)' dist/stress.sh

clean: ## remove what was built
	rm -rf bin dist/out

help: ## list these targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 17

# A tool is built when it is missing, or older than the stamp of its version.
stamp = @mkdir -p bin && rm -f bin/.$(1)-* && touch $@

bin/.etcd-$(ETCD):
	$(call stamp,etcd)
bin/.plugins-$(PLUGINS):
	$(call stamp,plugins)
bin/.flannel-plugin-$(FLANNEL_PLUGIN):
	$(call stamp,flannel-plugin)

bin/.containerd-$(CONTAINERD):
	$(call stamp,containerd)
CONTAINERD_PROGRAMS := bin/cluster/containerd bin/cluster/containerd-shim-runc-v2 bin/cluster/ctr
# With the flags of Kubernetes, for the same reason.
$(CONTAINERD_PROGRAMS): bin/.containerd-$(CONTAINERD)
	@mkdir -p $(@D)
	GOBIN=$(CURDIR)/$(@D) nice $(GO) install -gcflags='all=-N -l -dwarf=false' -ldflags '-s -w -X github.com/containerd/containerd/v2/version.Version=$(CONTAINERD)' \
		github.com/containerd/containerd/v2/cmd/$(@F)@$(CONTAINERD) && touch $@

# Programs for tests that are not installed here: for virtual machines, and for the rules of Prometheus.
bin/strongswan/unpacked: dist/unpack.sh
	dist/unpack.sh strongswan libstrongswan libstrongswan-standard-plugins strongswan-libcharon charon-systemd strongswan-swanctl
bin/prometheus/unpacked: dist/unpack.sh
	dist/unpack.sh prometheus prometheus
# The container runtime below containerd.
bin/runc/unpacked: dist/unpack.sh
	dist/unpack.sh runc runc

# The programs of the image, such as nft, of the packages of Debian that are pinned for it.
bin/image/start: dist/image.sh $(PINS)
	rm -rf $(@D) && cd cmd/flannel-release && $(GO) run . -pins '$(PINS)' unpack $(CURDIR)/$(@D)
	cp dist/image.sh $@

bin/.wine-$(WINE_HASH):
	$(call stamp,wine)
bin/wine/run: bin/.wine-$(WINE_HASH)
	$(WINE_LOCK) sh -c '[ $@ -nt $< ] || dist/wine.sh'

bin/.picture-$(PICTURE_HASH):
	$(call stamp,picture)
# The lock file has a checksum of each package, and no script of a package runs.
bin/picture/render.mjs: bin/.picture-$(PICTURE_HASH)
	mkdir -p $(@D) && cp $(PICTURE_FILES) $(@D) && cd $(@D) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && touch render.mjs

bin/.kube-$(KUBE_HASH):
	$(call stamp,kube)

bin/kube: bin/.kube-$(KUBE_HASH)
	cd $(KUBE) && nice $(GO) build $(KUBE_FLAGS) -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' -o ../../../$@ .
# They are bin/kube, which looks at the name by which it is started.
bin/render bin/kube-proxy bin/kubectl: bin/kube
	ln -sf kube $@
# Helm's command is a package main, which no other program can contain.
bin/helm: bin/.kube-$(KUBE_HASH) bin/kube
	cd $(KUBE) && nice $(GO) build $(KUBE_FLAGS) -ldflags '-s -w' -o ../../../$@ helm.sh/helm/v3/cmd/helm
bin/kube-proxy.exe: bin/.kube-$(KUBE_HASH) bin/kube
	cd $(KUBE) && GOOS=windows GOARCH=amd64 nice $(GO) build $(KUBE_FLAGS) -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' \
		-o ../../../$@ k8s.io/kubernetes/cmd/kube-proxy

# Kubernetes' end-to-end tests: the tests of SIG Network, what runs them, and the programs of their images.
bin/cluster/e2e.test: bin/.kube-$(KUBE_HASH)
	@mkdir -p $(@D)
	cd $(KUBE) && nice $(GO) test -vet=off -c $(KUBE_FLAGS) -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' -o ../../../$@ ./e2e
bin/cluster/ginkgo: bin/.kube-$(KUBE_HASH)
	@mkdir -p $(@D)
	cd $(KUBE) && nice $(GO) build $(KUBE_FLAGS) -ldflags '-s -w' -o ../../../$@ github.com/onsi/ginkgo/v2/ginkgo
bin/cluster/agnhost bin/cluster/regression-issue-74839: bin/.kube-$(KUBE_HASH)
	@mkdir -p $(@D)
	cd $(KUBE) && nice $(GO) build $(KUBE_FLAGS) -ldflags '-s -w' -o ../../../$@ k8s.io/kubernetes/test/images/$(@F)
bin/cluster/localhost.crt bin/cluster/localhost.key: bin/.kube-$(KUBE_HASH)
	@mkdir -p $(@D)
	install -m 644 $$(cd $(KUBE) && $(GO) list -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images/agnhost/porter/$(@F) $@
bin/cluster/e2e.images: bin/cluster/e2e.test
	$< --list-images >$@.new && sort -u -o $@.new $@.new && mv $@.new $@

bin/.coredns-$(COREDNS_HASH):
	$(call stamp,coredns)
bin/cluster/coredns: bin/.coredns-$(COREDNS_HASH)
	@mkdir -p $(@D)
	cd $(COREDNS) && nice $(GO) build $(KUBE_FLAGS) -ldflags '-s -w' -o ../../../$@ .

# Debian's packages come from bin/debian, if they are there.
bin/cluster/conformance.tar: ARCH = $(shell $(GO) env GOARCH)
bin/cluster/conformance.tar: $(addprefix bin/cluster/,agnhost regression-issue-74839 coredns localhost.crt localhost.key e2e.images) \
		cmd/flannel-release/conformance.go cmd/flannel-release/conformance.json
	cd cmd/flannel-release && $(GO) run . -version '$(VERSION)' -commit '$(COMMIT)' -time '$(SOURCE_DATE_EPOCH)' -systems linux-$(ARCH) -pins conformance.json \
		conformance '$(CURDIR)/bin/cluster'

bin/etcd: bin/.etcd-$(ETCD)
	cd $(LAB) && $(GO) build -o ../../$@ go.etcd.io/etcd/server/v3
bin/etcdutl: bin/.etcd-$(ETCD)
	cd $(LAB) && $(GO) build -o ../../$@ go.etcd.io/etcd/etcdutl/v3
bin/etcdctl: bin/.etcd-$(ETCD)
	cd $(LAB) && $(GO) build -o ../../$@ go.etcd.io/etcd/etcdctl/v3

install = GOBIN=$(CURDIR)/$(@D) $(GO) install github.com/containernetworking/plugins/plugins/$(1)/$(@F)@$(2) && touch $@

# For another system, go install only installs into GOPATH.
cross-install = GOPATH=$(CURDIR)/bin/.windows GOMODCACHE=$(shell $(GO) env GOMODCACHE) GOOS=windows GOARCH=amd64 \
	$(GO) install github.com/containernetworking/plugins/plugins/$(1)/$(@F:.exe=)@$(2) && mv bin/.windows/bin/windows_amd64/$(@F) $@ && touch $@

bin/cni/win-overlay.exe bin/cni/win-bridge.exe: bin/.plugins-$(PLUGINS)
	@mkdir -p $(@D)
	$(call cross-install,main/windows,$(PLUGINS))
bin/cni/host-local.exe: bin/.plugins-$(PLUGINS)
	@mkdir -p $(@D)
	$(call cross-install,ipam,$(PLUGINS))

bin/cni-former/flannel: bin/.flannel-plugin-$(FLANNEL_PLUGIN)
	$(call install,meta,$(FLANNEL_PLUGIN))
bin/cni/bridge bin/cni/loopback bin/cni/macvlan bin/cni/ipvlan: bin/.plugins-$(PLUGINS)
	$(call install,main,$(PLUGINS))
bin/cni/host-local: bin/.plugins-$(PLUGINS)
	$(call install,ipam,$(PLUGINS))
bin/cni/portmap bin/cni/bandwidth bin/cni/tuning: bin/.plugins-$(PLUGINS)
	$(call install,meta,$(PLUGINS))
