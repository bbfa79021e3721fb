package linux

import (
	"net/netip"
	"sync/atomic"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// rows are the tables of rtnetlink, which hold the entries of most kinds of paths. The
// loop, or the goroutine of Apply for which the loop waits (see Driver), has all fields to
// itself, except the tables and the store, which have locks, and diverting: the watcher uses
// these, too.
type rows struct {
	conn     *rtnetlink.Conn
	store    *nexthopStore // of nexthops
	nexthops *reconcile.Table[nexthopKey, struct{}]
	routes   *reconcile.Table[routeKey, hop]
	neighs   *reconcile.Table[neighKey, dataplane.MAC]
	fdb      *reconcile.Table[fdbKey, netip.Addr]

	hopUsers  reconcile.CompactMap[packedHop, int] // number of wanted routes through a hop beyond the first; no entry: 0
	network   map[routeKey]hop                     // wanted routes that lead to no peer; see addNetworkRoutes
	foreign   map[routeKey]hop                     // routes of others into our networks, as of the last list; see routeStore
	diverting atomic.Bool                          // there are forwarders: it matters which routes others have into our networks; see tun.diverted
}

// newRows returns the tables that all kinds of devices share, with their stores.
func newRows(c *rtnetlink.Conn, scope *scopePointer, instance string) *rows {
	store := newNexthopStore(c, scope, instance)
	routes := newRouteStore(store)
	r := &rows{
		conn: c, store: store, foreign: routes.foreign,
		nexthops: reconcile.NewTable[nexthopKey, struct{}](store),
		routes:   reconcile.NewTable[routeKey, hop](routes),
		neighs:   reconcile.NewTable[neighKey, dataplane.MAC](neighStore{c, scope}),
		fdb:      reconcile.NewTable[fdbKey, netip.Addr](fdbStore{c, scope}),
	}
	store.lost, store.relist = r.routes.Relist, r.nexthops.Relist // the tables exist only now
	return r
}

// putRoute puts a route into its table: wants or drops it, or collects its key (dataplane.Filling).
// It also puts the nexthop object, unless another wanted route uses it.
func (r *rows) putRoute(f *dataplane.Filling, dst netip.Prefix, h hop) {
	dataplane.Put(f, r.routes, routeKey{dst, defaultMetric(dst.Addr())}, h)
	key := nexthopKey{packedHop: h.pack()}
	switch others, _ := r.hopUsers.Get(key.packedHop); { // others: beside the one that made the table want the object
	case f.Verb == dataplane.Want && r.nexthops.Wanted(key):
		r.hopUsers.Set(key.packedHop, others+1)
	case f.Verb == dataplane.Drop && others > 1:
		r.hopUsers.Set(key.packedHop, others-1)
	case f.Verb == dataplane.Drop && others == 1:
		r.hopUsers.Delete(key.packedHop)
	default:
		dataplane.Put(f, r.nexthops, key, struct{}{})
	}
}

// reset forgets what the tables wanted, which want nothing now.
func (r *rows) reset() {
	r.hopUsers = reconcile.CompactMap[packedHop, int]{}
	r.network = nil
}
