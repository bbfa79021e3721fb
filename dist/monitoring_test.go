package dist_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flannel/internal/test/nettest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// promtool runs Prometheus' checker.
func promtool(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(nettest.Tool(t, "prometheus/usr/bin/promtool"), args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// The rules are valid, and fire when they should: each alert and each record
// has a case in rules_test.yaml.
func TestPrometheusRules(t *testing.T) {
	promtool(t, "check", "rules", "monitoring/rules.yaml")
	promtool(t, "test", "rules", "monitoring/rules_test.yaml")
	cases, err := os.ReadFile("monitoring/rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile("monitoring/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var found int
	for line := range strings.Lines(string(rules)) {
		for kind, form := range map[string]string{"- alert: ": "- alertname: %s\n", "- record: ": "- expr: %s"} {
			if _, name, ok := strings.Cut(strings.TrimSpace(line), kind); ok {
				found++
				if !strings.Contains(string(cases), fmt.Sprintf(form, name)) {
					t.Errorf("rules_test.yaml has no case in which %s has a result", name)
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d rules found", found)
	}
}

// A record over a range of time ends with this range.
func TestRecordsHaveTheirRange(t *testing.T) {
	rules, err := os.ReadFile("monitoring/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	records := regexp.MustCompile(`- record: (\S+)\n\s+expr: (.+)`).FindAllStringSubmatch(string(rules), -1)
	inName, inExpr := regexp.MustCompile(`\d+[smhd]$`), regexp.MustCompile(`\[(\d+[smhd])\]`)
	ranges := 0
	for _, r := range records {
		for _, over := range inExpr.FindAllStringSubmatch(r[2], -1) {
			ranges++
			if named := inName.FindString(r[1]); named != over[1] {
				t.Errorf("%s is over %s, its name says %q", r[1], over[1], named)
			}
		}
	}
	if len(records) < 5 || ranges < 4 {
		t.Errorf("only %d records with %d ranges found", len(records), ranges)
	}
}

// Panels have places of their own, and expressions that Prometheus accepts.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		UID, Title string
		Panels     []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	if board.UID == "" || board.Title == "" || len(board.Panels) == 0 {
		t.Fatalf("no dashboard: %+v", board)
	}
	var rules []map[string]string
	cells, ids := map[[2]int]string{}, []int{}
	for _, p := range board.Panels {
		if slices.Contains(ids, p.ID) {
			t.Errorf("panel %q has the ID of another", p.Title)
		}
		ids = append(ids, p.ID)
		g := p.GridPos
		if g.X < 0 || g.W < 1 || g.H < 1 || g.X+g.W > 24 {
			t.Errorf("panel %q is outside of the grid: %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" {
					t.Fatalf("panels %q and %q overlap", other, p.Title)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			rules = append(rules, map[string]string{"record": fmt.Sprintf("panel:%d:%d", p.ID, len(rules)), "expr": target.Expr})
		}
	}
	// Rules are the form in which promtool checks expressions.
	file, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dashboard.yaml") // JSON is YAML
	write(t, path, string(file))
	if out := promtool(t, "check", "rules", path); !strings.Contains(out, fmt.Sprintf("%d rules found", len(rules))) {
		t.Errorf("promtool did not find %d expressions:\n%s", len(rules), out)
	}
}

// The chart makes a PodMonitor only if it is asked to. Pods then serve the port
// that the PodMonitor names, on all addresses.
func TestChartPodMonitor(t *testing.T) {
	const windows = "windows: {enabled: true}\nbackend: {Type: host-gw}\n"
	for name, c := range map[string]struct {
		values          string
		exposed, object bool
	}{
		"default":     {windows, false, false},
		"exposed":     {windows + "metrics: {expose: true}\n", true, false},
		"PodMonitor":  {windows + "metrics: {podMonitor: {enabled: true, labels: {release: prom}, interval: 5s}}\n", true, true},
		"reuse-value": {windows + "metrics: null\n", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := chart(t, c.values)
			if err != nil {
				t.Fatal(err, text)
			}
			var serving int
			object := false
			for _, o := range objects(t, text) {
				switch o.GetKind() {
				case "PodMonitor":
					object = true
					spec, err := json.Marshal(o.Object["spec"])
					if err != nil || o.GetLabels()["release"] != "prom" || !strings.Contains(string(spec), `"interval":"5s"`) ||
						!strings.Contains(string(spec), `"port":"metrics"`) {
						t.Errorf("%v: the PodMonitor is %s", err, text)
					}
				case "DaemonSet":
					containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
					if err != nil || len(containers) == 0 {
						t.Fatalf("%s: %v", o.GetName(), err)
					}
					made, err := json.Marshal(containers)
					if err != nil {
						t.Fatal(err)
					}
					if strings.Contains(string(made), `{"containerPort":8471,"name":"metrics"}`) &&
						strings.Contains(string(made), "--healthz-ip=0.0.0.0") {
						serving++
					} else if !strings.Contains(string(made), "--healthz-ip=127.0.0.1") {
						t.Errorf("%s listens elsewhere: %s", o.GetName(), made)
					}
				}
			}
			if want := map[bool]int{true: 2}[c.exposed]; serving != want {
				t.Errorf("%d DaemonSets serve metrics, want %d", serving, want)
			}
			if object != c.object {
				t.Errorf("a PodMonitor: %t, want %t", object, c.object)
			}
		})
	}
}
