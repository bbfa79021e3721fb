package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	"flannel/pkg/status"
	"flannel/subnet/kube"
)

// clusterFlags are the flags of status for the Nodes of the cluster.
type clusterFlags struct {
	on       bool
	selector string
}

// clusterFlags declares the flags.
func (c *call) clusterFlags() *clusterFlags {
	f := &clusterFlags{}
	c.flags.BoolVar(&f.on, "cluster", false, "one line for each Node of the Kubernetes cluster, from what the Nodes publish; not with --peers, --history or --watch")
	c.flags.Func("selector", "with --cluster: only Nodes whose labels match this `SELECTOR`, as kubectl takes it", func(text string) error {
		f.selector = text
		_, err := labels.Parse(text)
		return err
	})
	return f
}

// check returns an error for flags that cannot be given together.
func (f *clusterFlags) check(set *pflag.FlagSet) error {
	if !f.on {
		if set.Changed("selector") {
			return errors.New("--selector: also requires --cluster")
		}
		return nil
	}
	for _, other := range []struct{ flag, why string }{
		{"watch", "each look would list all Nodes; repeat status --cluster instead"},
		{"interval", "it is of --watch"},
		{"peers", "it is about what the daemon on this node knows; give one of the two"},
		{"history", "it is about the daemon on this node; give one of the two"},
	} {
		if set.Changed(other.flag) {
			return fmt.Errorf("--%s does not go with --cluster: %s", other.flag, other.why)
		}
	}
	return nil
}

// clusterAnswer is the JSON document of status --cluster.
type clusterAnswer struct {
	Ready bool              `json:"ready"` // every Node is, and there is one
	Nodes []kube.NodeStatus `json:"nodes"`
}

// errNotInKubernetes is why there is nothing to show of a cluster whose leases are in etcd.
var errNotInKubernetes = errors.New("the daemon's leases are in etcd, where nodes publish no state; status --peers lists them. For the Nodes of a Kubernetes cluster, give --kubeconfig-file before status")

// showCluster is the command status --cluster. timeout is for the daemon's answer, and for
// each page of the list of Nodes; if the daemon lists them, for all pages.
func (c *call) showCluster(ctx context.Context, selector string, wide bool, timeout time.Duration) int {
	// A kubeconfig or a URL may be of another cluster, whose settings are not those of the daemon here.
	list := func() ([]kube.NodeStatus, error) { return kube.Nodes(ctx, *c.Kube.client(), selector, timeout) }
	if !c.Kube.named() {
		asking, cancel := context.WithTimeout(ctx, timeout)
		daemons, onBehalf := c.askSettings(asking) // it sets c.Kube, if a daemon answers; without one, the pod's service account is used
		cancel()
		if onBehalf {
			list = func() ([]kube.NodeStatus, error) { return c.nodesOnBehalf(ctx, selector, timeout) }
		}
		if daemons.Etcd != nil && !c.Kube.On {
			return c.fail(fmt.Errorf("status: %w", errNotInKubernetes))
		}
	}
	nodes, err := list()
	if err != nil {
		return c.fail(fmt.Errorf("status: %w", err))
	}
	count := map[kube.NodeState]int{}
	for _, n := range nodes {
		count[n.State]++
	}
	ready := len(nodes) > 0 && count[kube.NodeReady] == len(nodes)
	exit := c.answer(clusterAnswer{ready, append([]kube.NodeStatus{}, nodes...)}, clusterText(nodes, count, time.Now(), wide), nil)
	if exit == exitOK && !ready {
		return exitNotReady
	}
	return exit
}

// clusterText returns a table of the Nodes below a line that counts them. wide adds columns.
func clusterText(nodes []kube.NodeStatus, count map[kube.NodeState]int, now time.Time, wide bool) string {
	var counts []string
	for _, state := range kube.NodeStates {
		if count[state] > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", count[state], state))
		}
	}
	if len(counts) == 0 {
		return "nodes     none"
	}
	head := []string{"NODE", "STATE", "AGE", "SUBNET", "BACKEND", "ADDRESS", "VERSION"}
	if wide {
		head = append(head, "OS", "DATA")
	}
	rows := [][]string{append(head, "REASON")} // last, since it is the longest
	for _, n := range nodes {
		var subnets, addresses, data []string
		for _, e := range n.Endpoints {
			subnets = append(subnets, e.Subnet.String())
			if e.PublicIP.IsValid() {
				addresses = append(addresses, e.PublicIP.String())
			}
			if len(e.Data) > 0 {
				data = append(data, string(e.Data))
			}
		}
		age, version := "", n.Version
		if !n.Since.IsZero() {
			age = duration.HumanDuration(max(0, now.Sub(n.Since)))
		}
		if version == "" {
			version = n.Daemon // whose version is not known
		}
		row := []string{n.Name, string(n.State), age, strings.Join(subnets, ", "), n.Backend, strings.Join(addresses, ", "), version}
		if wide {
			row = append(row, n.OS, strings.Join(data, ", "))
		}
		rows = append(rows, append(row, n.Reason))
	}
	return "nodes     " + strings.Join(counts, ", ") + "\n\n" + strings.TrimSuffix(status.Table(rows), "\n")
}
