package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"flannel/backend"
	"flannel/internal/test/eventually"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/plan"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// overwrittenSources: the other nodes send to the address that the operator's annotation
// says, and their guards accept it and the node's own address, which the node learns to
// publish. An annotation that comes later waits for that.
func overwrittenSources(t *testing.T, o outside) {
	own, told := netip.MustParseAddr("192.168.0.46"), netip.MustParseAddr("203.0.113.46")
	o.add("sources-1", "10.244.46.0/24")
	o.annotate("sources-1", "public-ip-overwrite", told.String())
	n := start(t, o.Server, "sources-1", nil)
	knows := func(overwritten bool) {
		t.Helper()
		eventually.True(t, fmt.Sprintf("the node knows that its public IP is overwritten: %t", overwritten), func() bool {
			ips, err := n.PublicIPs(t.Context())
			return err == nil && ips == subnet.PublicIPs{Overwritten4: overwritten}
		})
	}
	knows(true)
	lease, err := n.Acquire(t.Context(), tenNet, subnet.Lease{})
	if err != nil {
		t.Fatal(err)
	}
	lease.V4.PublicIP = own
	b := vxlanOf(t, backend.Node{V4: true, Underlay: underlay.Link{Name: "eth0", MTU: 1500, V4: own, PublicV4: own}, Sources: []netip.Addr{own}})
	if lease, err = b.Describe(lease, dataplane.Links{"flannel.1": {MAC: dataplane.MAC{2, 0, 0, 0, 0, 46}}}); err != nil {
		t.Fatal(err)
	}
	if err := n.Publish(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	n.Run()

	o.add("sources-2", "10.244.47.0/24")
	peer := start(t, o.Server, "sources-2", nil)
	its := peer.join(tenNet, "192.168.0.47", mac2)
	peer.Run()
	sends := func(what string, via netip.Addr) {
		t.Helper()
		eventually.True(t, what, func() bool {
			s, _ := peer.Last()
			planned := plan.New(vxlanNet(), its, b).Update(s.Leases, nil)
			return slices.ContainsFunc(planned.Paths, func(p *dataplane.Path) bool {
				return p.Dst == lease.V4.Subnet && p.Via == via && p.Sources == dataplane.SourcesOf(own)
			})
		})
	}
	sends("the address that the operator has told, and the node's own", told)
	o.annotate("sources-1", "public-ip-overwrite", "")
	sends("the node's own address alone", own)
	knows(false)
	<-n.PublicIPsChanged() // the changes until now
	o.annotate("sources-1", "public-ip-overwrite", told.String())
	<-n.PublicIPsChanged() // in force, after a pause
	// The lease of a node that has not asked for the annotations since may lack the source.
	if err := n.Publish(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	o.annotate("sources-1", "backend-data", mac1)
	eventually.True(t, "the lease is restored", func() bool { return o.node("sources-1").Annotations[prefix+"backend-data"] != mac1 })
	if has := o.node("sources-1").Annotations[prefix+"public-ip"]; has != own.String() {
		t.Errorf("the others are told %s before the node has published from where it sends", has)
	}
	knows(true)
	if err := n.Publish(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	sends("both again", told)
}

// vxlanOf is the backend of a node.
func vxlanOf(t *testing.T, n backend.Node) backend.Backend {
	t.Helper()
	b, _, err := backend.KindOf("vxlan").Parse(conf.Parse([]byte(`{}`)), "linux")(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// vxlanNet is tenNet with that backend.
func vxlanNet() subnet.Config {
	cfg := tenNet
	cfg.Backend = "vxlan"
	return cfg
}
