package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"flannel/cmd/flannel-lab/machine"
	"flannel/pkg/status"
)

// closePort drops the packets of the tunnel that arrive at the second node, until the
// first one has found out. Its flanneld sends about one probe a second.
func (d *show) closePort(ctx context.Context) error {
	first, second := d.lab.Nodes[0], d.lab.Nodes[1]
	if _, err := d.awaitReach(ctx, status.Reachable); err != nil {
		return err
	}
	port := "8472"
	if d.windows() {
		port = "4789"
	}
	for _, command := range [][]string{
		{"nft", "add", "table", "inet", "firewall"},
		{"nft", "add", "chain", "inet", "firewall", "input", "{ type filter hook input priority 0; }"},
		{"nft", "add", "rule", "inet", "firewall", "input", "udp", "dport", port, "drop"},
	} {
		if _, err := d.run(ctx, second.Name, second.Namespaces, command...); err != nil {
			return err
		}
	}
	began := time.Now()
	found, err := d.awaitReach(ctx, status.OneWay, status.Unreachable)
	if err != nil {
		return err
	}
	took := time.Since(began)
	if _, err := d.run(ctx, first.Name, first.Namespaces, d.lab.Flanneld(), "status", "--peers"); err != nil {
		return err
	}
	d.result("found after %v: %s is %s at %s", took.Round(time.Second), second.Name, found, first.Name)
	if _, err := d.run(ctx, second.Name, second.Namespaces, "nft", "delete", "table", "inet", "firewall"); err != nil {
		return err
	}
	began = time.Now()
	if _, err := d.awaitReach(ctx, status.Reachable); err != nil {
		return err
	}
	d.result("reachable again after %v", time.Since(began).Round(time.Second))
	return nil
}

// awaitReach waits until the first node has found the second one in one of the states.
func (d *show) awaitReach(ctx context.Context, want ...status.ReachState) (found status.ReachState, err error) {
	first, second := d.lab.Nodes[0], d.lab.Nodes[1]
	_, err = machine.Until(ctx, timeout, func(ctx context.Context) error {
		out, err := first.Run(ctx, d.lab.Flanneld(), "status", "--json")
		if err != nil {
			return err
		}
		var r status.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			return err
		}
		for _, p := range r.Peers {
			if p.Reach == nil || !slices.Contains(p.PublicIPs, second.IP4) {
				continue
			}
			if found = p.Reach.State; slices.Contains(want, found) {
				return nil
			}
		}
		time.Sleep(100 * time.Millisecond) // the command costs more than waiting
		return fmt.Errorf("%s is %q at %s", second.Name, found, first.Name)
	})
	return found, err
}
