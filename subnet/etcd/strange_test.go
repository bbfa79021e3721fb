package etcd

import (
	"context"
	"net"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
)

// strange stands before a real etcd and adds to its answers what nobody asked for.
type strange struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	pb.UnimplementedLeaseServer
	kv    pb.KVClient
	watch pb.WatchClient
	lease pb.LeaseClient
}

func startStrange(t *testing.T, behind string) (endpoint string) {
	t.Helper()
	conn, err := grpc.NewClient(behind, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &strange{kv: pb.NewKVClient(conn), watch: pb.NewWatchClient(conn), lease: pb.NewLeaseClient(conn)}
	server := grpc.NewServer()
	pb.RegisterKVServer(server, s)
	pb.RegisterWatchServer(server, s)
	pb.RegisterLeaseServer(server, s)
	go server.Serve(l)
	t.Cleanup(func() { server.Stop(); conn.Close() })
	return "http://" + l.Addr().String()
}

// strangers are keys outside of any prefix that is asked for: shorter than it, after it, empty, missing.
func strangers() []*mvccpb.KeyValue {
	return []*mvccpb.KeyValue{{Key: []byte("x"), Value: []byte("y"), ModRevision: 1}, nil, {},
		{Key: []byte("/zzz/10.5.9.0-24"), Value: []byte(peer("192.168.64.9")), ModRevision: 1, CreateRevision: 1}}
}

func (s *strange) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	resp, err := s.kv.Range(ctx, r)
	if err == nil {
		resp.Kvs = append(strangers()[:1], append(resp.Kvs, strangers()[2:]...)...)
	}
	return resp, err
}

func (s *strange) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	resp, err := s.kv.Txn(ctx, r)
	if err == nil && resp.Succeeded {
		resp.Responses = resp.Responses[:1]
	}
	return resp, err
}

func (s *strange) Watch(down pb.Watch_WatchServer) error {
	up, err := s.watch.Watch(down.Context())
	if err != nil {
		return err
	}
	go func() {
		for {
			r, err := down.Recv()
			if err != nil || up.Send(r) != nil {
				return
			}
		}
	}()
	for {
		resp, err := up.Recv()
		if err != nil {
			return err
		}
		if len(resp.Events) > 0 {
			for _, kv := range strangers() {
				if kv != nil {
					resp.Events = append(resp.Events, &mvccpb.Event{Kv: kv}, &mvccpb.Event{Kv: kv, Type: mvccpb.DELETE})
				}
			}
			resp.Events = append(resp.Events, &mvccpb.Event{}) // no key at all
		}
		if err := down.Send(resp); err != nil {
			return err
		}
	}
}

func (s *strange) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return s.lease.LeaseGrant(ctx, r)
}

func (s *strange) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	return s.lease.LeaseTimeToLive(ctx, r)
}

// A server that sends keys which nobody asked for neither ends nor misleads us, and is warned of once.
func TestServerSendsOtherKeys(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	st.put("config", "{}")
	st.put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	n := start(t, startStrange(t, srv.Addr()), nil)
	n.publish(outOfTheWay("192.168.64.99"), mac1)
	n.Run()
	n.Sees("10.5.2.0-24")
	st.put("subnets/10.5.3.0-24", peer("192.168.64.3"))
	n.Sees("10.5.2.0-24 10.5.3.0-24")
	st.put("subnets/10.5.250.0-24", "garbage") // our own: to be restored
	eventually.True(t, "restored", func() bool {
		raw, _ := st.value(base + "/subnets/10.5.250.0-24")
		return raw == peer("192.168.64.99")
	})
	config := make(chan string, 10)
	go n.WatchConfig(t.Context(), func(raw []byte) { config <- string(raw) })
	for _, want := range []string{"{}", "{ }"} {
		if got := <-config; got != want {
			t.Errorf("configuration %q, want %q", got, want)
		}
		st.put("config", "{ }")
	}
	n.notLost()
	if n.logs.Count("prefix="+base) != 1 {
		t.Errorf("log:\n%s", n.logs)
	}
}
