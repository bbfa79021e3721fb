package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// peer is a node that exists only in etcd or Kubernetes. Its addresses follow from its
// number and version, and both can be read from the entries in the kernel, so that
// watching the kernel costs only a table lookup.
type peer struct {
	number  uint16
	version uint8 // 0 at first; another one, below 15, is another node with the same subnet
}

// The subnets of the peers are 10.x.y.0/24. Their nodes are in 172.16.0.0/12, which
// is directly reachable from the node under test.
const (
	firstPeer = 0x0100              // the lowest number, with the subnet 10.1.0.0/24
	lastPeer  = 0xfe00              // no peer has this number or a higher one
	benchNet  = "10.0.0.0/8"        // the pod network
	ownMin    = "10.254.0.0"        // the daemon gets its own subnet from here on: lastPeer as a subnet
	nodesNet  = "172.31.255.254/12" // address of the node under test in this network
	prefix    = "/coreos.com/network"
)

// For example, peer 0x0203 in version 1 has:
//
//	subnet     10.2.3.0/24
//	public IP  172.17.2.3
//	VTEP       02:be:00:01:02:03
//
// The methods below return these.

// base is the first address of the peer's subnet, and its gateway with vxlan.
func (p peer) base() netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(p.number >> 8), byte(p.number), 0})
}

func (p peer) subnet() netip.Prefix { return netip.PrefixFrom(p.base(), 24) }

func (p peer) publicIP() netip.Addr {
	return netip.AddrFrom4([4]byte{172, 16 + p.version, byte(p.number >> 8), byte(p.number)})
}

func (p peer) mac() string {
	return fmt.Sprintf("02:be:00:%02x:%02x:%02x", p.version, p.number>>8, p.number&0xff)
}

func (p peer) key() string { return fmt.Sprintf("%s/subnets/%s-24", prefix, p.base()) }

// value is the peer's lease in etcd, in flannel's format.
func (p peer) value(backend string) string {
	if backend == "vxlan" {
		return fmt.Sprintf(`{"PublicIP":"%s","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"%s"}}`, p.publicIP(), p.mac())
	}
	return fmt.Sprintf(`{"PublicIP":"%s","PublicIPv6":null,"BackendType":%q}`, p.publicIP(), backend)
}

// peerOfSubnet, peerOfNode and peerOfMAC return the peer that an address
// belongs to; ok is false if there is none.
func peerOfSubnet(b []byte) (p peer, ok bool) {
	if len(b) != 4 || b[0] != 10 || b[3] != 0 {
		return p, false
	}
	return known(peer{number: binary.BigEndian.Uint16(b[1:])})
}

func peerOfNode(b []byte) (p peer, ok bool) {
	if len(b) != 4 || b[0] != 172 || b[1] < 16 || b[1] > 31 {
		return p, false
	}
	return known(peer{binary.BigEndian.Uint16(b[2:]), b[1] - 16})
}

func peerOfMAC(b []byte) (p peer, ok bool) {
	if len(b) != 6 || b[0] != 2 || b[1] != 0xbe {
		return p, false
	}
	return known(peer{binary.BigEndian.Uint16(b[4:]), b[3]})
}

// known returns p, and whether its number is one of a peer.
func known(p peer) (peer, bool) {
	return p, p.number >= firstPeer && p.number < lastPeer
}

// peersFrom returns n peers, beginning with number firstPeer+first.
func peersFrom(first, n int) []peer {
	peers := make([]peer, n)
	for i := range peers {
		peers[i].number = uint16(firstPeer + first + i)
	}
	return peers
}

// populateEtcd writes the network configuration and the leases of the peers.
// All keys have one etcd lease with a TTL of a day, whose ID it returns: no bench takes
// as long, so no peer expires.
func populateEtcd(ctx context.Context, c *clientv3.Client, o Options, backend string, peers []peer) (clientv3.LeaseID, error) {
	config := fmt.Sprintf(`{"Network":%q,"SubnetLen":24,"SubnetMin":%q,"EnableNFTables":%t,"Backend":{"Type":%q}}`,
		benchNet, ownMin, o.nftables, backend)
	if _, err := c.Put(ctx, prefix+"/config", config); err != nil {
		return 0, fmt.Errorf("write the network configuration: %w", err)
	}
	day, err := c.Grant(ctx, int64((24 * time.Hour).Seconds()))
	if err != nil {
		return 0, fmt.Errorf("grant a lease: %w", err)
	}
	return day.ID, writePeers(ctx, c, backend, day.ID, peers, nil)
}

// writePeers writes and deletes leases, in transactions of the largest size
// that etcd accepts. day is the etcd lease of the keys: see populateEtcd.
func writePeers(ctx context.Context, c *clientv3.Client, backend string, day clientv3.LeaseID, put, remove []peer) error {
	var ops []clientv3.Op
	for _, p := range put {
		ops = append(ops, clientv3.OpPut(p.key(), p.value(backend), clientv3.WithLease(day)))
	}
	for _, p := range remove {
		ops = append(ops, clientv3.OpDelete(p.key()))
	}
	for len(ops) > 0 {
		n := min(len(ops), 128) // etcd's default of --max-txn-ops
		if _, err := c.Txn(ctx).Then(ops[:n]...).Commit(); err != nil {
			return fmt.Errorf("write leases: %w", err)
		}
		ops = ops[n:]
	}
	return nil
}
