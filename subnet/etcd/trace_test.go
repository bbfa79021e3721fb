package etcd

import (
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/pkg/conf"
)

// At the debug level each request is a line with verb, key and result, and without values or the password.
func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	const password = "correct-horse"
	srv := etcdtest.Start(t, etcdtest.Password(password))
	var log logtest.Log
	n := start(t, srv.Endpoint(), func(o *Options) { o.Username, o.Password, o.Log = "root", conf.NewSecret(password), log.Debug() })
	n.publish(outOfTheWay("192.168.64.3"), mac1)
	n.Run()
	n.Sees("")
	const own = base + "/subnets/10.5.250.0-24"
	eventually.True(t, "the watch is logged", func() bool { return log.Count("verb=Watch", "object="+base+"/subnets/*", "result=ok") > 0 })
	for _, want := range [][]string{
		{"verb=Authenticate", "object="}, {"verb=Range", "object=" + base + "/subnets/*"}, {"verb=LeaseGrant"}, {"verb=Txn", "object=" + own},
	} {
		lines := log.With(append(want, "level=DEBUG", "result=ok")...)
		if len(lines) == 0 || lines[0]["took"] == "" {
			t.Errorf("no line with %q:\n%s", want, &log)
		}
	}
	srv.Kill()
	eventually.True(t, "a failed request is logged", func() bool { return log.Count("level=DEBUG") > log.Count("level=DEBUG", "result=ok") })
	if text := log.String(); strings.Contains(text, password) || strings.Contains(text, "VtepMAC") || strings.Contains(text, "PublicIP") {
		t.Errorf("a value is in the log:\n%s", text)
	}
}

func TestObjectOf(t *testing.T) {
	for _, c := range []struct {
		req  any
		want string
	}{
		{&pb.RangeRequest{Key: []byte("/a")}, "/a"},
		{&pb.RangeRequest{Key: []byte("/a"), RangeEnd: []byte("/b")}, "/a*"},
		{&pb.PutRequest{Key: []byte("/a"), Value: []byte("secret")}, "/a"},
		{&pb.TxnRequest{Success: []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("/a"), Value: []byte("secret")}}},
			{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte("/b")}}},
		}}, "/a /b"},
		{&pb.LeaseKeepAliveRequest{ID: 0x2a}, "lease 2a"},
		{&pb.AuthenticateRequest{Name: "root", Password: "secret"}, ""},
		{&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("/a"), RangeEnd: []byte("/b")}}}, "/a*"},
		{nil, ""},
	} {
		if got := objectOf(c.req); got != c.want {
			t.Errorf("%v: %q, want %q", c.req, got, c.want)
		}
	}
}
