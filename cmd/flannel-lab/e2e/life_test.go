package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/internal/test/logtest"
)

// TestSubnetEnv compares the file byte by byte with the documented format, in
// each family, and then damages it.
func TestSubnetEnv(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		family  lab.Family
		backend string
		want    *regexp.Regexp
	}{
		{"IPv4", lab.V4, "vxlan", regexp.MustCompile(`^FLANNEL_NETWORK=10\.5\.0\.0/16\nFLANNEL_SUBNET=10\.5\.\d+\.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n$`)},
		{"dual", lab.Dual, "vxlan", regexp.MustCompile(`^FLANNEL_NETWORK=10\.5\.0\.0/16\nFLANNEL_SUBNET=10\.5\.\d+\.1/24\n` +
			`FLANNEL_IPV6_NETWORK=fd05::/48\nFLANNEL_IPV6_SUBNET=fd05:0:0:[0-9a-f]+::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n$`)},
		{"IPv6", lab.V6, "host-gw", regexp.MustCompile(`^FLANNEL_IPV6_NETWORK=fd05::/48\nFLANNEL_IPV6_SUBNET=fd05:0:0:[0-9a-f]+::1/64\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=true\n$`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := start(t, lab.Options{Nodes: 1, Family: c.family}, `{"Type":"`+c.backend+`"}`)
			n := l.Nodes[0]
			text := in(t, n.Namespaces, "cat /run/flannel/subnet.env")
			if !c.want.MatchString(text) {
				t.Errorf("subnet.env is\n%s", text)
			}
			for _, damage := range []string{"rm subnet.env", "echo FLANNEL_MTU=9000 > subnet.env", "> subnet.env",
				"mv subnet.env /run/elsewhere",
				"sed -i s/FLANNEL_MTU=.*/FLANNEL_MTU=1/ subnet.env", "mv /run/flannel /run/gone", "mv /run/flannel /run/again", "rm subnet.env"} {
				in(t, n.Namespaces, "cd /run/flannel; "+damage)
				within(t, "after "+damage+": restored", func() error {
					got, err := n.Run(t.Context(), "sh", "-c",
						"cat /run/flannel/subnet.env; stat -c %a /run/flannel/subnet.env")
					if err == nil && got != text+"644\n" {
						err = fmt.Errorf("subnet.env is\n%s", got)
					}
					return err
				})
			}
			becomesReady(t, n)
			eventually(t, "the files in /run/flannel", "subnet.env", func(ctx context.Context) (string, error) {
				return try(ctx, n.Namespaces, "ls -A -I 'flanneld.*' /run/flannel")
			})
		})
	}
}

// TestHealth checks the health port in every state, and the size of the log in
// steady state and under drift.
func TestHealth(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 3}, `{"Type":"vxlan"}`)
	n := l.Nodes[0]
	for _, n := range l.Nodes {
		hasPeers(t, n, 2)
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n"} {
		within(t, path, func() error {
			code, body, err := n.Ask(t.Context(), path)
			if err == nil && (code != 200 || body != want) {
				err = fmt.Errorf("%d %q", code, body)
			}
			return err
		})
	}
	within(t, "metrics", func() error { return metrics(t, n) })

	t.Run("not up to date", func(t *testing.T) {
		in(t, n.Namespaces, "ip link delete eth0") // which also deletes the tunnel
		within(t, "/readyz says why", func() error { return unready(t, n, "--iface=eth0") })
		within(t, "the metric says so", func() error { return has(t, n, "flanneld_in_step 0") })
		if code, _, err := n.Ask(t.Context(), "/healthz"); err != nil || code != 200 {
			t.Errorf("/healthz: %d %v", code, err)
		}
		must(t, n.Plug())
		becomesReady(t, n)
		within(t, "the metric says so", func() error { return has(t, n, "flanneld_in_step 1") })
	})
	t.Run("the kernel refuses", func(t *testing.T) {
		n := l.Nodes[1]
		stopped(t, n)
		// Another device uses our VNI and port.
		in(t, n.Namespaces, "ip link delete flannel.1; ip link add taken type vxlan id 1 dev eth0 dstport 8472")
		must(t, n.Start())
		within(t, "/readyz says why", func() error { return unready(t, n, "device flannel.1", "VNI 1", "8472") })
		in(t, n.Namespaces, "ip link delete taken")
		becomesReady(t, n)
		within(t, "errors were counted", func() error {
			if numbers(t, n)[`flanneld_errors_total{part="devices"}`] == 0 {
				return fmt.Errorf("flanneld_errors_total is 0")
			}
			return nil
		})
	})
	t.Run("drift", func(t *testing.T) { countRepairs(t, l.Nodes[2]) })
	t.Run("quiet", func(t *testing.T) { quiet(t, l) })
}

// quiet checks that nothing is logged and changed in steady state.
func quiet(t *testing.T, l *lab.Lab) {
	var marks []int
	var before []map[string]float64
	for _, n := range l.Nodes {
		within(t, n.Name+" logs nothing more", func() error {
			size := len(n.Log())
			time.Sleep(time.Second) // in which nothing may be logged
			if len(n.Log()) != size {
				return errors.New("the log grew")
			}
			return nil
		})
	}
	for _, n := range l.Nodes {
		marks, before = append(marks, len(n.Log())), append(before, numbers(t, n))
	}
	time.Sleep(15 * time.Second) // of steady state
	for i, n := range l.Nodes {
		for _, r := range n.Records(marks[i]) {
			// On a very busy machine, etcd may not answer for seconds.
			if r["cause"] != "store-silent" && r["cause"] != "store-back" {
				t.Errorf("%s in steady state: %s", n.Name, r[""])
			}
		}
		after := numbers(t, n)
		for name, value := range before[i] {
			if strings.HasPrefix(name, "flanneld_changes_total") && after[name] != value {
				t.Errorf("%s in steady state: %s went from %v to %v", n.Name, name, value, after[name])
			}
		}
		t.Logf("%s: %.0f ms of CPU in 15 s", n.Name,
			1000*(after["process_cpu_seconds_total"]-before[i]["process_cpu_seconds_total"]))
	}
}

// countRepairs deletes a route fifty times, waits for the repairs, and limits
// the size of the log.
func countRepairs(t *testing.T, n *lab.Node) {
	dst := strings.Fields(in(t, n.Namespaces, "ip route show dev flannel.1"))[0]
	mark, before := len(n.Log()), numbers(t, n)[`flanneld_changes_total{op="set",table="routes"}`]
	for range 50 {
		in(t, n.Namespaces, "ip route delete "+dst+"; until ip route show "+dst+" | grep -q .; do sleep 0.002; done")
	}
	within(t, "50 repairs are counted", func() error {
		if after := numbers(t, n)[`flanneld_changes_total{op="set",table="routes"}`]; after < before+50 {
			return fmt.Errorf("%v routes were set, want 50 more than %v", after, before)
		}
		return nil
	})
	if text := n.Log()[mark:]; strings.Count(text, "\n") > 60 || len(text) > 20_000 {
		t.Errorf("50 repairs are %d lines of %d bytes in the log:\n%s", strings.Count(text, "\n"), len(text), text)
	}
}

// metrics returns an error unless names and values of metrics on the first of three
// nodes are those of a synced node.
func metrics(t *testing.T, n *lab.Node) error {
	samples := numbers(t, n)
	for name, want := range map[string]float64{
		"flanneld_peers": 2, "flanneld_invalid_peers": 0, "flanneld_in_step": 1,
		`flanneld_entries{table="routes"}`: 2, `flanneld_entries{table="neighbours"}`: 2,
		`flanneld_entries{table="fdb"}`: 2,
	} {
		if got, ok := samples[name]; !ok || got != want {
			return fmt.Errorf("%s is %v (%t), want %v", name, got, ok, want)
		}
	}
	if count, sum := samples["flanneld_sync_seconds_count"], samples["flanneld_sync_seconds_sum"]; count < 1 ||
		sum <= 0 {
		return fmt.Errorf("%v passes took %v s", count, sum)
	}
	if age := time.Since(time.UnixMicro(int64(1e6 * samples["flanneld_last_sync_timestamp_seconds"]))); age < 0 ||
		age > time.Hour {
		return fmt.Errorf("the last sync was %v ago", age)
	}
	if samples["go_goroutines"] == 0 || samples["process_cpu_seconds_total"] == 0 {
		return errors.New("no metrics of the process")
	}
	if !slices.ContainsFunc(keysOf(samples), func(name string) bool { return strings.HasPrefix(name, `flanneld_build_info{commit="`) }) {
		return errors.New("flanneld_build_info is missing")
	}
	return nil
}

func keysOf(m map[string]float64) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	return names
}

// numbers returns the samples in /metrics.
func numbers(t *testing.T, n *lab.Node) map[string]float64 {
	t.Helper()
	code, body, err := n.Ask(t.Context(), "/metrics")
	if err != nil || code != 200 {
		t.Fatalf("/metrics: %d %v", code, err)
	}
	samples := map[string]float64{}
	for line := range strings.Lines(body) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if number, err := strconv.ParseFloat(value, 64); ok && err == nil && name != "#" {
			samples[name] = number
		}
	}
	return samples
}

// TestEnd covers every way to end except for a lost lease: the exit status, the
// names in the output, and the time.
func TestEnd(t *testing.T) {
	t.Parallel()
	l := bare(t, lab.Options{Nodes: 1})
	n := l.Nodes[0]
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
	for _, c := range []struct {
		names  []string
		status int
		args   []string
	}{
		{[]string{"--ifcae", "--iface"}, 2, []string{"-ifcae=eth0"}},
		{[]string{"--healthz-port", "70000", "65535"}, 2, []string{"-healthz-port=70000"}},
		{[]string{`"sing"`}, 2, []string{"sing"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			mark := len(n.Log())
			must(t, n.Start(c.args...))
			ends(t, n, c.status)
			if text := n.Log()[mark:]; !logtest.Names(text, c.names...) {
				t.Errorf("the output is\n%s\nwant %q", text, c.names)
			}
		})
	}
	// Another process must not keep the node without network by taking the health port.
	t.Run("health port", func(t *testing.T) {
		taken, err := n.Listen("tcp", fmt.Sprintf(":%d", lab.HealthPort))
		must(t, err)
		defer taken.Close()
		mark := len(n.Log())
		must(t, n.Start())
		within(t, "the subnet file is written", func() error { _, err := n.SubnetEnv(); return err })
		if text := n.Log()[mark:]; !logtest.Names(text, "no-health-port", "--healthz-port", fmt.Sprint(lab.HealthPort)) {
			t.Errorf("the output is\n%s", text)
		}
		taken.Close()
		must(t, n.Ready(t.Context()))
		stopped(t, n)
	})
	t.Run("JSON", func(t *testing.T) {
		mark := len(n.Log())
		must(t, n.Start("-log-format=json", "-v=10"))
		must(t, n.Ready(t.Context()))
		stopped(t, n)
		for line := range strings.Lines(n.Log()[mark:]) {
			var entry struct {
				Time       time.Time
				Level, Msg string
			}
			if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Time.IsZero() || entry.Level == "" ||
				entry.Msg == "" {
				t.Errorf("%q: %v", line, err)
			}
		}
	})
	t.Run("SIGINT", func(t *testing.T) {
		must(t, n.Start())
		must(t, n.Ready(t.Context()))
		must(t, n.Signal(syscall.SIGINT))
		ends(t, n, 0)
	})
	// SIGTERM in any state of etcd and of the daemon.
	for _, c := range []struct {
		name   string
		harm   func() error
		undo   func() error
		joined bool
	}{
		{"etcd paused", l.Etcd.Pause, l.Etcd.Resume, true},
		{"etcd paused from the start", l.Etcd.Pause, l.Etcd.Resume, false},
		{"etcd gone", l.Etcd.Kill, func() error { return l.Etcd.Start(t.Context()) }, true},
		{"etcd never reached", l.Etcd.Kill, func() error { return nil }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.joined {
				must(t, n.Start())
				must(t, n.Ready(t.Context()))
				must(t, c.harm())
			} else {
				must(t, c.harm())
				must(t, n.Start())
				within(t, "/healthz answers", func() error { _, _, err := n.Ask(t.Context(), "/healthz"); return err })
			}
			time.Sleep(500 * time.Millisecond) // so that it runs with the harm
			stopped(t, n)
			must(t, c.undo())
		})
	}
}
