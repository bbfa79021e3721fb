package etcd

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"flannel/internal/test/etcdtest"
)

// A Hold ignores the key that it has held once another Acquire has got another key: its deletion, its return as another
// node's, and a lost connection after that, with the history compacted. holder.observe compares with the key that
// is held now.
func TestFormerHold(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	n := start(t, srv.Endpoint(), nil)
	former := n.publish(outOfTheWay("192.168.64.3"), mac1)
	old := holder{n.Manager, n.own.held}
	n.Run()
	n.Sees("")
	l := n.publish(at("192.168.64.4"), mac1)
	n.Sees("10.5.250.0-24")
	st.Delete(t.Context(), former.Name)
	n.Sees("")
	deleted := &mvccpb.KeyValue{Key: []byte(former.Name), ModRevision: old.written() + 100}
	old.handle(t.Context(), []*mvccpb.Event{{Type: mvccpb.DELETE, Kv: deleted}})
	old.handleList(t.Context(), &snapshot{at: position{rev: deleted.ModRevision}}, false)
	if old.held.state != held {
		t.Errorf("the deletion of a former key is recorded: state %d", old.held.state)
	}
	st.Put(t.Context(), former.Name, peer("192.168.64.77"))
	n.Sees("10.5.250.0-24")
	srv.Compact()
	n.Redial()
	st.addPeer(7)
	n.Sees("10.5.7.0-24 10.5.250.0-24")
	n.notLost()
	if raw, _ := st.value(former.Name); raw != peer("192.168.64.77") {
		t.Errorf("the former key is %s", raw)
	}
	if raw, id := st.value(l.Name); raw != peer("192.168.64.4") || id == 0 {
		t.Errorf("our key is %s on etcd lease %x", raw, id)
	}
}
