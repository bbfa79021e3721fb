package conformance

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/lab"
)

var guardPackets = regexp.MustCompile(`(?m)^flanneld_guard_packets_total\{(.*)\} ([0-9.e+]+)$`)

// guardCounted returns an error if the guard of a node has counted or dropped
// packets: none of Kubernetes' tests sends what the guard looks for.
func guardCounted(ctx context.Context, n *cluster.Node) error {
	_, text, err := n.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.HealthPort))
	if err != nil {
		return fmt.Errorf("metrics of %s: %w", n.Name, err)
	}
	return counted(n.Name, text)
}

// counted reads metrics. flanneld without a guard has none of these.
func counted(node, metrics string) error {
	for _, m := range guardPackets.FindAllStringSubmatch(metrics, -1) {
		packets, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return fmt.Errorf("metrics of %s: %w", node, err)
		}
		if packets > 0 {
			return fmt.Errorf("the guard of %s counted %.0f packets: %s", node, packets, m[1])
		}
	}
	return nil
}
