package conformance

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

var guardPackets = regexp.MustCompile(`(?m)^flanneld_guard_packets_total\{(.*)\} ([0-9.e+]+)$`)

// guardCounters returns the packets that the guard of a node has counted or dropped, by the
// labels of its metrics. A node without a guard has none.
func guardCounters(ctx context.Context, n *cluster.Node) (map[string]float64, error) {
	_, text, err := n.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.HealthPort))
	if err == nil {
		var c map[string]float64
		if c, err = counters(text); err == nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("metrics of %s: %w", n.Name, err)
}

// acquainted waits until a node has paths to all others, by its metric flanneld_peers: before
// that, its guard counts their probes.
func acquainted(ctx context.Context, n *cluster.Node, others int) error {
	_, err := machine.Until(ctx, machine.Longest, func(ctx context.Context) error {
		_, text, err := n.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.HealthPort))
		if err == nil && !strings.Contains(text, fmt.Sprintf("\nflanneld_peers %d\n", others)) {
			err = fmt.Errorf("%s does not know all nodes", n.Name)
		}
		return err
	})
	return err
}

// counters reads metrics.
func counters(metrics string) (map[string]float64, error) {
	c := map[string]float64{}
	for _, m := range guardPackets.FindAllStringSubmatch(metrics, -1) {
		packets, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, err
		}
		c[m[1]] = packets
	}
	return c, nil
}

// foundEarly returns an error if the guard of a node has found other packets before the tests
// than those of nodes that joined (see "Nodes that join" in Documentation/guard.md).
func foundEarly(node string, backend map[string]any, counters map[string]float64) error {
	direct := backend["Type"] == "host-gw" || backend["DirectRouting"] == true
	for labels, packets := range counters {
		ofJoined := strings.Contains(labels, `rule="outsider"`) || direct && strings.Contains(labels, `rule="spoofed"`)
		if packets > 0 && !ofJoined {
			return fmt.Errorf("the guard of %s: it counted %.0f packets before the tests: %s", node, packets, labels)
		}
	}
	return nil
}

// guardFoundNothing returns an error if the guard of a node has found packets since before:
// none of Kubernetes' tests sends what the guard looks for.
func guardFoundNothing(ctx context.Context, n *cluster.Node, before map[string]float64) error {
	after, err := guardCounters(ctx, n)
	if err != nil {
		return err
	}
	if err := added(before, after); err != nil {
		return fmt.Errorf("the guard of %s: %w", n.Name, err)
	}
	return nil
}

// added returns an error if a counter has changed or is gone.
func added(before, after map[string]float64) error {
	for labels, packets := range after {
		if packets != before[labels] {
			return fmt.Errorf("it counted %.0f packets: %s", packets-before[labels], labels)
		}
	}
	for labels := range before {
		if _, there := after[labels]; !there {
			return fmt.Errorf("a counter is gone: %s", labels)
		}
	}
	return nil
}
