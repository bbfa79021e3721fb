package kube

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/eventually"
	"flannel/subnet"
)

// Of all nodes, a few write about a peer, whatever their number, and not always the same.
func TestFewWriteAboutAPeer(t *testing.T) {
	for _, count := range []int{1, 2, 3, 4, 10, 100, 1000} {
		var m members
		var changes []change
		for i := range count {
			changes = append(changes, change{name: fmt.Sprint("node-", i), node: &storedNode{Annotations: annotated("kube-subnet-manager", "true")}})
		}
		m.update(changes)
		m.update([]change{{name: "peer-0", node: changes[0].node}, {name: "none", node: &storedNode{}}, {name: "gone", node: changes[0].node}, {name: "gone"}})
		var rejects []subnet.Rejected
		for i := range 20 {
			rejects = append(rejects, subnet.Rejected{Name: fmt.Sprint("peer-", i)})
		}
		by, nodes := map[string]int{}, map[string]bool{}
		for i := range count {
			for _, r := range m.share(fmt.Sprint("node-", i), rejects) {
				by[r.Name]++
				nodes[fmt.Sprint("node-", i)] = true
			}
		}
		want := min(count, writers)
		for _, r := range rejects {
			// peer-0 takes part, too, and may have been chosen to write about others.
			if n := by[r.Name]; n > want || n < want-1 || n == 0 && count > 1 {
				t.Errorf("%d of %d nodes write about %s", n, count, r.Name)
			}
		}
		for i := range count {
			local := []subnet.Rejected{{Name: "peer-0", Local: true}}
			if len(m.share(fmt.Sprint("node-", i), local)) != 1 {
				t.Errorf("node-%d of %d does not write about a peer that only it rejects", i, count)
			}
		}
		if count >= 100 && len(nodes) < 30 {
			t.Errorf("only %d of %d nodes write", len(nodes), count)
		}
	}
}

// Rejected Nodes, behind which there may be no node, do not take the turns of others.
func TestRejectedNodesWriteNothing(t *testing.T) {
	var m members
	var changes []change
	var rejects []subnet.Rejected
	for i := range 60 {
		rejects = append(rejects, subnet.Rejected{Name: fmt.Sprint("junk-", i)})
		changes = append(changes, change{name: rejects[i].Name, node: &storedNode{Annotations: annotated("kube-subnet-manager", "true")}})
	}
	for i := range 5 {
		changes = append(changes, change{name: fmt.Sprint("node-", i), node: changes[0].node})
	}
	m.update(changes)
	by, unreachable := map[string]int{}, 0
	for i := range 5 {
		for _, r := range m.share(fmt.Sprint("node-", i), rejects) {
			by[r.Name]++
		}
		unreachable += len(m.shareOf(fmt.Sprint("node-", i), []string{"node-9"}))
	}
	for _, r := range rejects {
		if by[r.Name] != writers {
			t.Errorf("%d nodes write about %s, want %d", by[r.Name], r.Name, writers)
		}
	}
	if unreachable != writers {
		t.Errorf("%d nodes write about one that is not reached, want %d", unreachable, writers)
	}
}

// A node that has another configuration than all others rejects every peer.
func BenchmarkAllOf10000Rejected(b *testing.B) {
	var m members
	var changes []change
	var rejects []subnet.Rejected
	for i := range 10_000 {
		rejects = append(rejects, subnet.Rejected{Name: fmt.Sprint("node-", i)})
		changes = append(changes, change{name: rejects[i].Name, node: &storedNode{Annotations: annotated("kube-subnet-manager", "true")}})
	}
	m.update(changes)
	for b.Loop() {
		m.share("one", rejects)
	}
}

// fewEvents: each node writes about itself, and a few about a peer; nobody reads its Node for that.
func fewEvents(t *testing.T, o outside) {
	const count = 12
	var nodes []*member
	for i := range count {
		name := fmt.Sprintf("few-%d", i)
		o.add(name, fmt.Sprintf("10.244.%d.0/24", 100+i))
		n := start(t, o.Server, name, func(op *Options) { op.Grace, op.SetCondition = time.Millisecond, false })
		n.join(tenNet, fmt.Sprintf("192.168.0.%d", 100+i), mac1)
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		n.Run()
	}
	for _, n := range nodes {
		eventually.True(t, "it sees all", func() bool {
			s, _ := n.Last()
			seen := 0
			for _, l := range s.Leases {
				if len(l.Name) > 4 && l.Name[:4] == "few-" {
					seen++
				}
			}
			return seen == count-1
		})
		n.Report(subnet.Report{Problem: errors.New("broken"), Rejects: []subnet.Rejected{{Name: "few-rogue", Reason: "no MAC"}}})
		n.ReportUnreachable([]string{"few-gone"})
	}
	written := func(reason string) (count int) {
		list, err := o.Client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list.Items {
			if len(e.InvolvedObject.Name) > 4 && e.InvolvedObject.Name[:4] == "few-" {
				if e.InvolvedObject.UID != o.node(e.InvolvedObject.Name).UID {
					t.Errorf("the Event is about %+v", e.InvolvedObject)
				}
				count++
			}
		}
		return count
	}
	// Each writes about itself after it has written about others.
	eventually.True(t, "each writes about itself", func() bool { return written(reasonNotSynced) == count })
	// Nodes of other tests take part in this cluster, and they may be the ones to write.
	if n := written(reasonRejected); n > writers {
		t.Errorf("%d of %d nodes write about a peer", n, count)
	}
	if n := written(reasonUnreachable); n > writers {
		t.Errorf("%d of %d nodes write about an unreachable peer", n, count)
	}
	for _, n := range nodes {
		if gets := n.traffic.matching("GET /api/v1/nodes/" + n.ownName()); len(gets) > 0 {
			t.Errorf("%s reads its Node: %v", n.ownName(), gets)
		}
	}
}
