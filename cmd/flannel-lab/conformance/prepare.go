package conformance

import (
	"context"
	_ "embed" // coredns.yaml
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/machine"
	api "flannel/internal/test/kubetest/cluster"
)

//go:embed coredns.yaml
var coreDNS []byte

// programs are what a run needs below bin/cluster, besides the cluster itself.
var programs = []string{"e2e.test", "ginkgo", "conformance.tar"}

// check returns an error that names the programs that are missing.
func (o Options) check() error {
	var missing []string
	for _, name := range programs {
		if _, err := os.Stat(o.file(name)); err != nil {
			missing = append(missing, name)
		}
	}
	if missing != nil {
		return fmt.Errorf("missing in %s: %s: run 'make conformance'", o.file(""), strings.Join(missing, ", "))
	}
	return nil
}

// file returns the path of a program or an image below bin/cluster.
func (o Options) file(name string) string { return filepath.Join(o.cluster.BinDir, "cluster", name) }

// backendObject returns the configuration's Backend, decoded.
func (o Options) backendObject() (b map[string]any, err error) {
	text := o.backend
	if !strings.HasPrefix(text, "{") {
		text = fmt.Sprintf(`{"Type":%q}`, text)
	}
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return nil, fmt.Errorf("--backend: %w", err)
	}
	return b, nil
}

// edits returns the changes of the manifest that make the configuration: pairs of a text in
// Documentation/kube-flannel.yml and its replacement, for Cluster.Install, which fails if the
// manifest lacks the text.
func (o Options) edits() ([]string, error) {
	b, err := o.backendObject()
	if err != nil {
		return nil, err
	}
	backend, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	guard := ""
	if o.guard != "" {
		guard = fmt.Sprintf(`"Guard": %q, `, o.guard)
	}
	return []string{
		`"EnableNFTables": false,`, fmt.Sprintf(`%s"EnableNFTables": %t,`, guard, o.nftables),
		"\"Backend\": {\n        \"Type\": \"vxlan\"\n      }", `"Backend": ` + string(backend),
	}, nil
}

// prepare installs what the tests need: the pod network, their images, CoreDNS,
// routes to pods for the API server, and a zone for each node.
func (o Options) prepare(ctx context.Context, c *cluster.Cluster) error {
	edits, err := o.edits()
	if err != nil {
		return err
	}
	if err := c.Install(ctx, edits...); err != nil {
		return fmt.Errorf("install the pod network: %w", err)
	}
	for _, n := range c.Nodes {
		if err := n.Load(ctx, o.file("conformance.tar")); err != nil {
			return err
		}
		if err := routeToPods(ctx, c, n); err != nil {
			return fmt.Errorf("route the API server to the pods of %s: %w", n.Name, err)
		}
		if err := label(ctx, c, n); err != nil {
			return err
		}
	}
	objects, err := api.Objects(coreDNS)
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, false, objects...); err != nil {
		return err
	}
	return dnsReady(ctx, c)
}

// routeToPods adds routes to the node's pods to Infra, where the API server runs: tests
// reach pods by the server's proxy. On a node, flanneld would have made these routes.
func routeToPods(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
	object, err := n.Object(ctx)
	if err != nil {
		return err
	}
	return c.Infra.Do(func() error { // Infra is on one link with the nodes
		var errs []error
		for _, text := range object.Spec.PodCIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return err
			}
			via := n.IP4
			if p.Addr().Is6() {
				via = n.IP6
			}
			errs = append(errs, netlink.RouteReplace(&netlink.Route{Gw: via.AsSlice(),
				Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}))
		}
		return errors.Join(errs...)
	})
}

// label gives the node a zone of its own: tests of topology skip themselves with
// fewer than three.
func label(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"topology.kubernetes.io/zone":"zone-%s"}}}`, n.Name)
	_, err := c.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// dnsReady waits until all pods of CoreDNS are ready.
func dnsReady(ctx context.Context, c *cluster.Cluster) error {
	_, err := machine.Until(ctx, machine.Longest, func(ctx context.Context) error {
		d, err := c.Client.AppsV1().Deployments("kube-system").Get(ctx, "coredns", metav1.GetOptions{})
		// With an older ObservedGeneration, the status is that of a former Deployment.
		if err == nil && (d.Status.ObservedGeneration < d.Generation || d.Status.ReadyReplicas != *d.Spec.Replicas) {
			time.Sleep(50 * time.Millisecond) // the nodes have more important work
			err = fmt.Errorf("CoreDNS: %d of %d pods are ready", d.Status.ReadyReplicas, *d.Spec.Replicas)
		}
		return err
	})
	return err
}
