# What a person needs: `make demo` shows flannel at work, `make test` tests everything. Both take root, Linux and Go,
# and on Debian or Ubuntu install what else is missing.

GO      ?= go
LAB     := cmd/flannel-lab
# Other programs that the lab runs, as they are in real clusters.
ETCD    := $(shell sed -n 's/.*go.etcd.io\/etcd\/server\/v3 \(v[0-9.]*\).*/\1/p' $(LAB)/go.mod)
PLUGINS := v1.9.1
# The last release in which the plugins' repository had the flannel meta-plugin.
FLANNEL_PLUGIN := v0.9.1

export CGO_ENABLED = 0

.DEFAULT_GOAL := build
.PHONY: build tools demo

build: ## bin/flanneld, for this machine
	$(GO) build -o bin/flanneld ./cmd/flanneld

tools: bin/etcd bin/cni/flannel bin/cni/bridge bin/cni/host-local bin/cni/loopback bin/cni/portmap ## the lab and what it runs
	cd $(LAB) && $(GO) build -o ../../bin/flannel-lab .

demo: ## three nodes on this machine, and what flannel does for them, in half a minute
	@dist/setup.sh demo
	@$(MAKE) --no-print-directory build tools
	@bin/flannel-lab demo $(ARGS)

# A tool is built when it is missing or when the stamp of its version is newer.
stamp = @mkdir -p bin && rm -f bin/.$(1)-v* && touch $@

bin/.etcd-$(ETCD):
	$(call stamp,etcd)
bin/.plugins-$(PLUGINS):
	$(call stamp,plugins)
bin/.flannel-plugin-$(FLANNEL_PLUGIN):
	$(call stamp,flannel-plugin)

bin/etcd: bin/.etcd-$(ETCD)
	cd $(LAB) && $(GO) build -o ../../$@ go.etcd.io/etcd/server/v3

install = GOBIN=$(CURDIR)/bin/cni $(GO) install github.com/containernetworking/plugins/plugins/$(1)/$(@F)@$(2) && touch $@

bin/cni/flannel: bin/.flannel-plugin-$(FLANNEL_PLUGIN)
	$(call install,meta,$(FLANNEL_PLUGIN))
bin/cni/bridge bin/cni/loopback: bin/.plugins-$(PLUGINS)
	$(call install,main,$(PLUGINS))
bin/cni/host-local: bin/.plugins-$(PLUGINS)
	$(call install,ipam,$(PLUGINS))
bin/cni/portmap: bin/.plugins-$(PLUGINS)
	$(call install,meta,$(PLUGINS))
