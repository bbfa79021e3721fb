// Command coredns is CoreDNS with the plugins that a cluster without another
// DNS server uses, and those of the DNS servers that Kubernetes' end-to-end tests
// start. It is a module of its own because of its dependencies.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// A query passes the plugins in this order. Unlike in CoreDNS as it is
	// released, template comes last: it answers what no zone has, so that no query
	// waits for a server outside of the cluster.
	dnsserver.Directives = []string{"ready", "health", "errors", "log", "cache", "loadbalance", "hosts", "kubernetes", "template"}
	coremain.Run()
}
