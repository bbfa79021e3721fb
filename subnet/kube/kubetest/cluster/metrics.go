package cluster

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Metrics are the API server's own, one sample a line, as Prometheus reads them.
type Metrics []byte

// Metrics asks the server for them.
func (c *Cluster) Metrics(ctx context.Context) (Metrics, error) {
	raw, err := c.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return raw, nil
}

// Sum adds the samples of that name that have all of these labels, each as `verb="GET"`.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	lines := bufio.NewScanner(bytes.NewReader(m))
	lines.Buffer(nil, 1<<20)
samples:
	for lines.Scan() {
		rest, ours := strings.CutPrefix(lines.Text(), name)
		if !ours || rest == "" || rest[0] != '{' && rest[0] != ' ' {
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

// EtcdReads is how often the server has read Nodes from etcd, one or a list of them.
func (m Metrics) EtcdReads() float64 {
	const name = "etcd_request_duration_seconds_count"
	nodes := `resource="nodes"`
	return m.Sum(name, nodes, `operation="get"`) + m.Sum(name, nodes, `operation="list"`)
}
