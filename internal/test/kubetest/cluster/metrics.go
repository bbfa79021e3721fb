package cluster

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Metrics are the metrics of an API server in the text format of Prometheus.
type Metrics []byte

// Metrics requests the metrics of the server.
func (c *Cluster) Metrics(ctx context.Context) (Metrics, error) {
	raw, err := c.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return raw, nil
}

// Sum returns the sum of the samples of a metric that have all of these labels,
// each given as `verb="GET"`.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	lines := bufio.NewScanner(bytes.NewReader(m))
	lines.Buffer(nil, 1<<20)
samples:
	for lines.Scan() {
		rest, found := strings.CutPrefix(lines.Text(), name)
		if !found || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue samples
			}
		}
		if v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64); err == nil {
			sum += v
		}
	}
	return sum
}

// EtcdReads returns how often the server has read Nodes from etcd, single ones
// and lists.
func (m Metrics) EtcdReads() float64 {
	const name = "etcd_request_duration_seconds_count"
	nodes := `resource="nodes"`
	return m.Sum(name, nodes, `operation="get"`) + m.Sum(name, nodes, `operation="list"`)
}
