package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/nettest"
)

// prometheus is a Prometheus on a node, which reads all nodes of the lab and
// has the rules in dist/monitoring.
type prometheus struct {
	at *lab.Node
}

func startPrometheus(t *testing.T, l *lab.Lab) prometheus {
	t.Helper()
	at := l.Nodes[0]
	// The own node by loopback, so that it is read while it has no uplink.
	targets := []string{fmt.Sprintf("127.0.0.1:%d", lab.HealthPort)}
	for _, n := range l.Nodes[1:] {
		targets = append(targets, fmt.Sprintf("%s:%d", n.IP4, lab.HealthPort))
	}
	conf, err := json.Marshal(map[string]any{ // JSON is YAML
		"global":     map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{monitoring(t, "rules.yaml")},
		"scrape_configs": []any{map[string]any{"job_name": "flanneld",
			"static_configs": []any{map[string]any{"targets": targets}}}},
	})
	must(t, err)
	must(t, at.WriteFile("/run/prometheus.yml", string(conf)))
	program := nettest.Tool(t, "prometheus/usr/bin/prometheus")
	p, err := machine.StartProcess(at.Machine, exec.Command(program, "--config.file=/run/prometheus.yml",
		"--storage.tsdb.path=/run/prometheus", "--web.listen-address=127.0.0.1:9090"), "prometheus.log")
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of prometheus:\n%s", p.Log())
		}
	})
	return prometheus{at}
}

// monitoring returns the path of a file in dist/monitoring.
func monitoring(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(nettest.Root(t), "dist", "monitoring", name)
}

// get sends a request to Prometheus' API and decodes the data of the answer.
func (p prometheus) get(t *testing.T, path string, data any) error {
	code, body, err := p.at.Get(t.Context(), "http://127.0.0.1:9090/api/v1/"+path)
	if err != nil {
		return err
	}
	if code != 200 {
		return fmt.Errorf("%s: status %d: %s", path, code, body)
	}
	return json.Unmarshal([]byte(body), &struct{ Data any }{data})
}

// rules are the rules as Prometheus has loaded them.
type rules struct {
	Groups []struct {
		Rules []struct{ Name, Type, Query, Health, LastError, State string }
	}
}

// rules returns the rules when all have been evaluated without an error.
func (p prometheus) rules(t *testing.T) (r rules, err error) {
	if err := p.get(t, "rules", &r); err != nil {
		return r, err
	}
	var count int
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			count++
			if rule.Health != "ok" {
				return r, fmt.Errorf("rule %s is %s: %s", rule.Name, rule.Health, rule.LastError)
			}
		}
	}
	if count == 0 {
		return r, errors.New("Prometheus has no rules")
	}
	return r, nil
}

// quiet returns an error if an alert is pending or firing.
func (p prometheus) quiet(t *testing.T) error {
	r, err := p.rules(t)
	if err != nil {
		return err
	}
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			if rule.Type == "alerting" && rule.State != "inactive" {
				return fmt.Errorf("alert %s is %s", rule.Name, rule.State)
			}
		}
	}
	return nil
}

// yields returns an error unless an expression has at least one sample.
func (p prometheus) yields(t *testing.T, expression string) error {
	var answer struct{ Result []any }
	if err := p.get(t, "query?query="+url.QueryEscape(expression), &answer); err != nil {
		return err
	}
	if len(answer.Result) == 0 {
		return fmt.Errorf("no data for %s", expression)
	}
	return nil
}

// dashboard returns the expressions of the dashboard, for all jobs and nodes.
func dashboard(t *testing.T) (expressions []string) {
	t.Helper()
	text, err := os.ReadFile(monitoring(t, "dashboard.json"))
	must(t, err)
	var board struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(text, &board))
	for _, p := range board.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q of the dashboard is empty", p.Title)
		}
		for _, target := range p.Targets {
			expressions = append(expressions, strings.NewReplacer("$job", ".*", "$instance", ".*").Replace(target.Expr))
		}
	}
	if len(expressions) == 0 {
		t.Fatal("the dashboard has no expressions")
	}
	return expressions
}

var (
	notSeries = regexp.MustCompile(` by \([^)]*\) |\[[^]]*\]|\b(bool|and|or|unless|offset)\b`)
	series    = regexp.MustCompile(`\b[a-z_][a-z0-9_:]*(\{[^}]*\}|\()?`)
)

// seriesIn returns the selectors in an expression: the names of metrics with
// the labels that they must have.
func seriesIn(expression string) (selectors []string) {
	for _, found := range series.FindAllString(notSeries.ReplaceAllString(expression, ""), -1) {
		if !strings.HasSuffix(found, "(") { // a function
			selectors = append(selectors, found)
		}
	}
	return selectors
}

// backendOf returns the backend that has the metrics in an expression; vxlan
// for those that all have.
func backendOf(expression string) string {
	switch {
	case strings.Contains(expression, "wireguard"):
		return "wireguard"
	case strings.Contains(expression, "_udp_"):
		return "udp"
	}
	return "vxlan"
}

// expressions returns what must yield data: the records, each expression of the
// dashboard, and all series in both and in the alerts.
func expressions(t *testing.T, p prometheus) []string {
	t.Helper()
	r, err := p.rules(t)
	must(t, err)
	all := dashboard(t)
	for _, expression := range all {
		all = append(all, seriesIn(expression)...)
	}
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			all = append(all, seriesIn(rule.Query)...)
			if rule.Type == "recording" {
				all = append(all, rule.Name)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestMonitoring reads the nodes with a real Prometheus and checks that all
// series in the rules and the dashboard exist, so that a metric or a label that
// was renamed is noticed.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "wireguard", "udp"} {
		t.Run(backend, func(t *testing.T) {
			l := start(t, lab.Options{Nodes: 2}, `{"Type":"`+backend+`"}`)
			p := startPrometheus(t, l)
			within(t, "both nodes are read, and no alert is pending", func() error {
				return errors.Join(p.yields(t, "sum(up) == 2"), p.yields(t, "min(flanneld_peers) == 1"), p.quiet(t))
			})
			if backend == "vxlan" {
				shell(t, l.Nodes[0].Namespaces, "ip route del $(ip route show proto 70 | cut -d ' ' -f 1); iptables -F FLANNEL-FWD")
				for _, what := range []string{"routes", "firewall"} {
					within(t, what+" are repaired", func() error { return p.yields(t, `flanneld_repairs_total{what="`+what+`"}`) })
				}
				in(t, l.Nodes[0].Namespaces, "ip link delete eth0") // passes fail, which is counted
				within(t, "the alert about it", func() error { return p.yields(t, `ALERTS{alertname="FlanneldNotInStep"}`) })
			}
			for _, expression := range expressions(t, p) {
				if backendOf(expression) == backend {
					within(t, expression, func() error { return p.yields(t, expression) })
				}
			}
		})
	}
}
