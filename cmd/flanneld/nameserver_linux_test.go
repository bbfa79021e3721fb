package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/kubetest"
	"flannel/internal/test/nstest"
	"flannel/subnet"
	"flannel/subnet/etcd"
	"flannel/subnet/kube"
)

// A first name server that does not answer keeps this node from neither store.
func TestSilentNameServer(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		net.DefaultResolver.PreferGo = true // as without cgo
		store, cluster := etcdtest.Start(t), kubetest.Start(t)
		etcdAddr, apiAddr := netip.MustParseAddrPort(store.Addr()), netip.MustParseAddrPort(cluster.Addr())
		listenUDP(t, "127.0.0.2:53") // the silent one
		go answerNames(listenUDP(t, "127.0.0.3:53"), map[string]netip.Addr{
			"etcd1.example.": etcdAddr.Addr(), "kubernetes.default.svc.": apiAddr.Addr()})
		file := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(file, []byte("nameserver 127.0.0.2\nnameserver 127.0.0.3\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		acquired := make(chan error, 1)
		go func() {
			acquired <- acquireByName(ctx, fmt.Sprintf("http://etcd1.example:%d", etcdAddr.Port()))
		}()
		kubeconfig, _ := cluster.Kubeconfig(cluster.Token("node-1"), "")
		byName := kube.Options{Kubeconfig: kubeconfig, APIURL: fmt.Sprintf("https://kubernetes.default.svc:%d", apiAddr.Port())}
		_, err := kube.WindowsNodes(ctx, byName)
		for err != nil && ctx.Err() == nil { // a busy machine may need longer than a connection has, once
			t.Log(err)
			_, err = kube.WindowsNodes(ctx, byName)
		}
		if err != nil {
			t.Error(err)
		}
		if err := <-acquired; err != nil {
			t.Error(err)
		}
	})
}

// acquireByName acquires a lease from the etcd at endpoint.
func acquireByName(ctx context.Context, endpoint string) error {
	m, err := etcd.New(ctx, etcd.Options{Endpoints: []string{endpoint}, Log: slog.Default()})
	if err != nil {
		return err
	}
	defer m.Close()
	_, err = m.Acquire(ctx, subnet.Config{V4: subnet.Network{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24,
		Min: netip.MustParseAddr("10.5.1.0"), Max: netip.MustParseAddr("10.5.255.0")}},
		subnet.Lease{V4: subnet.Endpoint{PublicIP: netip.MustParseAddr("192.168.64.3")}})
	return err
}

// listenUDP returns a socket that is closed when the test ends.
func listenUDP(t *testing.T, address string) net.PacketConn {
	t.Helper()
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// answerNames is a name server for the IPv4 addresses of some names, until conn is closed.
func answerNames(conn net.PacketConn, addrs map[string]netip.Addr) {
	for buf := make([]byte, 1<<10); ; {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		if addr, ok := addrs[q.Name.String()]; !ok {
			m.RCode = dnsmessage.RCodeNameError
		} else if q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: addr.As4()}}}
		}
		if raw, err := m.Pack(); err == nil {
			_, _ = conn.WriteTo(raw, from)
		}
	}
}
