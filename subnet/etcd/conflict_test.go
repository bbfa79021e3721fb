package etcd

import (
	"testing"
	"time"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
)

// The pause of a conflict goes on when Hold lists its key again, because its history was compacted or its connection was
// lost.
func TestListDuringThePause(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	n := start(t, srv.Endpoint(), nil)
	key := n.publish(outOfTheWay("192.168.64.3"), mac1).Name
	n.Run()
	n.Sees("")
	n.own.mu.Lock()
	for range 10 { // so that the next pause is a long one
		n.own.held.conflict.Changed(time.Now(), n.own.held.random)
		n.own.held.conflict.Restored()
	}
	n.own.mu.Unlock()
	var due time.Time
	eventually.True(t, "it pauses", func() bool {
		if raw, _ := st.value(key); raw != "garbage" { // at first, and if a pause has gone by unseen
			st.Put(t.Context(), key, "garbage")
		}
		n.own.mu.Lock()
		defer n.own.mu.Unlock()
		due = n.own.held.restoreAt
		return n.own.held.state == overwritten
	})
	st.addPeer(1)
	srv.Compact()
	n.Redial()
	eventually.True(t, "put back", func() bool { raw, _ := st.value(key); return raw == peer("192.168.64.3") })
	if early := time.Until(due); early > 0 {
		t.Errorf("it was put back %v before the end of the pause", early)
	}
	n.notLost()
}
