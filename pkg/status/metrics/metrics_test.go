package metrics

import (
	"fmt"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/status"
)

func TestMetrics(t *testing.T) {
	board := &status.Board{}
	var said status.Report
	board.Add(status.OfStore, func(r *status.Report) { r.Outage, r.OutageSince = said.Outage, said.OutageSince })
	board.Add(status.OfNode, func(r *status.Report) {
		r.Counts, r.Pending, r.LeaseExpires = said.Counts, said.Pending, said.LeaseExpires
	})
	board.Add(status.OfDataplane, func(r *status.Report) { r.Guard, r.Forwarded = said.Guard, said.Forwarded })
	board.Add(status.OfProbes, func(r *status.Report) { r.Probes = said.Probes })
	board.Add(status.OfPeers, func(*status.Report) { t.Error("a scrape asks for all peers") })
	m := New(board, "v1.2.3", "abc", nil)
	said.Counts = status.Counts{Used: 7, Rejected: 2, Refused: 1, Retained: 4}
	m.Table("routes", 7, reconcile.Result{Set: 3, Deleted: 1, Failed: 2})
	m.Table("routes", 8, reconcile.Result{Set: 1})
	m.Repaired("routes", 3)
	m.Repaired("firewall", 1)
	m.Pass(time.Millisecond, false, []string{"dataplane"})
	scrape := func() string {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics", nil)
		r.Header.Set("Accept-Encoding", "gzip") // as Prometheus asks
		m.Handler().ServeHTTP(w, r)
		return w.Body.String()
	}
	if text := scrape(); !strings.Contains(text, "flanneld_store_silent_seconds 0\n") || !strings.Contains(text, "flanneld_store_refuses 0\n") || strings.Contains(text, "flanneld_lease_remaining_seconds") {
		t.Error("a store that answers, and a lease without an end, do not show as such")
	}
	said.Outage = "etcd refuses a request"
	if text := scrape(); !strings.Contains(text, "flanneld_store_silent_seconds 0\n") || !strings.Contains(text, "flanneld_store_refuses 1\n") {
		t.Errorf("a store that refuses a request does not show:\n%s", text)
	}
	said.Outage = "etcd does not answer"
	said.OutageSince, said.LeaseExpires = time.Now().Add(-time.Hour), time.Now().Add(100*time.Hour)
	if text := scrape(); !regexp.MustCompile(`(?m)^flanneld_store_silent_seconds 36\d\d`).MatchString(text) || !strings.Contains(text, "flanneld_store_refuses 0\n") || !regexp.MustCompile(`(?m)^flanneld_lease_remaining_seconds 3(59|60)\d`).MatchString(text) {
		t.Errorf("an outage and the end of the lease do not show:\n%s", text)
	}
	if text := scrape(); strings.Contains(text, "flanneld_udp") || strings.Contains(text, "flanneld_guard") || strings.Contains(text, "flanneld_probes_total") {
		t.Error("there are metrics of a forwarder, a guard or probes without one")
	}
	said.Guard = &dataplane.GuardReport{Enforce: true, Problem: "no nf_tables", Packets: map[string]uint64{"outsider": 9}, Dropped: map[string]uint64{"outsider": 7}, Joined: map[string]uint64{"outsider": 1}}
	said.Forwarded = &dataplane.Forwarded{Sent: dataplane.Flow{Packets: 2, Bytes: 300}, Received: dataplane.Flow{Packets: 4, Bytes: 500}, Dropped: map[string]uint64{"foreign": 6}}
	said.Pending = "on trial"
	said.Probes = &status.Probes{Peers: map[status.ReachState]int{status.OneWay: 3}, Sent: 9, Answered: 6, Failed: 1}
	text := scrape()
	for _, want := range []string{
		"flanneld_peers 7", "flanneld_invalid_peers 2", "flanneld_refused_peers 1", "flanneld_retained_peers 4", "flanneld_in_step 0", "flanneld_config_pending 1", `flanneld_entries{table="routes"} 8`,
		`flanneld_changes_total{op="set",table="routes"} 4`, `flanneld_changes_total{op="delete",table="routes"} 1`,
		`flanneld_repairs_total{what="routes"} 3`, `flanneld_repairs_total{what="firewall"} 1`,
		`flanneld_changes_total{op="refused",table="routes"} 2`, `flanneld_errors_total{part="dataplane"} 1`,
		fmt.Sprintf(`flanneld_build_info{commit="abc",goversion=%q,version="v1.2.3"} 1`, runtime.Version()), "flanneld_sync_seconds_count 1", "flanneld_last_sync_timestamp_seconds 0",
		`flanneld_udp_packets_total{direction="sent"} 2`, `flanneld_udp_bytes_total{direction="sent"} 300`, `flanneld_udp_packets_total{direction="received"} 4`,
		`flanneld_udp_bytes_total{direction="received"} 500`, `flanneld_udp_dropped_packets_total{reason="foreign"} 6`,
		`flanneld_guard_packets_total{mode="enforce",rule="outsider"} 7`, `flanneld_guard_packets_total{mode="audit",rule="outsider"} 2`, `flanneld_guard_joined_packets_total{rule="outsider"} 1`, `flanneld_guard_working{mode="enforce"} 0`,
		`flanneld_probed_peers{state="one-way"} 3`, `flanneld_probed_peers{state="reachable"} 0`,
		`flanneld_probes_total{result="sent"} 9`, `flanneld_probes_total{result="answered"} 6`, `flanneld_probes_total{result="failed"} 1`,
		"process_resident_memory_bytes", "go_goroutines",
	} {
		if !strings.Contains(text, want+"\n") && !strings.Contains(text, want+" ") {
			t.Errorf("%q is not among the metrics", want)
		}
	}
	m.Pass(time.Millisecond, true, nil)
	board.EndPass(nil)
	if text := scrape(); !strings.Contains(text, "flanneld_in_step 1\n") || strings.Contains(text, "flanneld_last_sync_timestamp_seconds 0\n") {
		t.Error("a pass that went well does not show")
	}
}

// Each peer has metrics if there are few of them; else a scrape does not even ask for them.
func TestMetricsOfEachPeer(t *testing.T) {
	board, probed, asked, tooMany := &status.Board{}, 0, 0, 0
	board.Add(status.OfProbes, func(r *status.Report) {
		r.Probes = &status.Probes{Peers: map[status.ReachState]int{status.Reachable: probed - 1, status.OneWay: 1}}
	})
	board.Add(status.OfPeers, func(r *status.Report) {
		asked++
		r.Peers = []status.Peer{
			{Name: "up", Reach: &status.Reach{State: status.Reachable, Answered: time.Now(), RTT: status.Duration(2 * time.Second)}},
			{Name: "down", Reach: &status.Reach{State: status.OneWay}},
			{Name: "unknown", Reach: &status.Reach{State: status.UnknownReach}},
			{Name: "orphan"},
		}
	})
	each, without := New(board, "v1.2.3", "abc", func() { tooMany++ }), New(board, "v1.2.3", "abc", nil)
	for _, probed = range []int{MaxPeers, MaxPeers + 1} {
		asked, tooMany = 0, 0
		w, plain := httptest.NewRecorder(), httptest.NewRecorder()
		each.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		without.Handler().ServeHTTP(plain, httptest.NewRequest("GET", "/metrics", nil))
		want := []string{`flanneld_peer_reachable{peer="down"} 0`, `flanneld_peer_reachable{peer="up"} 1`, `flanneld_peer_rtt_seconds{peer="up"} 2`}
		if probed > MaxPeers {
			want = nil
		}
		got := regexp.MustCompile(`(?m)^flanneld_peer_.*`).FindAllString(w.Body.String(), -1)
		if !slices.Equal(got, want) || asked != min(1, len(want)) || tooMany != 1-asked || strings.Contains(plain.Body.String(), "flanneld_peer_") {
			t.Errorf("%d peers: %q, want %q; the peers were asked for %d times, %d reports of too many", probed, got, want, asked, tooMany)
		}
	}
}
