package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
	"flannel/internal/test/nettest"
	"flannel/subnet"
)

// A server that is killed in the middle of everything: the network stays as it was, and nothing is missed.
func TestKilled(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t, kubetest.Audit())
	o := outside{t, s}
	o.add("killed-0", "10.244.1.0/24")
	n := start(t, s, "killed-0", nil)
	l := n.join(tenNet, "192.168.0.1", mac1)
	whole := o.ours("killed-0")
	for i := 1; i <= 5; i++ {
		o.peer(fmt.Sprintf("killed-%d", i), fmt.Sprintf("10.244.%d.0/24", 10+i), fmt.Sprintf("192.168.0.%d", 10+i))
	}
	n.Run()
	n.Sees("killed-1 killed-2 killed-3 killed-4 killed-5")
	outages := func() (all, over int) { // whether the server did not answer, was too busy or refused
		last := ""
		for _, cause := range n.logs.With().Values("cause") {
			switch {
			case cause == "store-back":
				over++
			case cause == "store-silent" && last != "store-busy", cause == "store-busy", cause == "store-refuses":
				all++ // one that becomes silent after it was busy is the same
			default:
				continue
			}
			last = cause
		}
		return all, over
	}
	for round := range 3 {
		begun, killed := make(chan bool), make(chan bool)
		go func() { // churn, as far as it gets
			for i := 0; ; i++ {
				raw := fmt.Sprintf(`{"metadata":{"annotations":{"%sbackend-data":"{\"VNI\":1,\"VtepMAC\":\"c6:d2:32:6f:%02x:%02x\"}"}}}`, prefix, round, i%256)
				_, err := s.Client.CoreV1().Nodes().Patch(t.Context(), fmt.Sprintf("killed-%d", 1+i%5), types.StrategicMergePatchType, []byte(raw), metav1.PatchOptions{})
				if i == 20 {
					close(begun)
				}
				if err != nil {
					close(killed)
					return
				}
			}
		}()
		<-begun
		s.Kill()
		atKill, _ := outages() // of a busy server; one of them may go on
		<-killed
		eventually.True(t, "the outage is noticed", func() bool { all, over := outages(); return all > over })
		before, _ := n.Last()
		eventually.True(t, "what came before it is told, and nothing more", func() bool {
			_, calls := n.Last()
			time.Sleep(2 * time.Second) // in which nothing may be told
			_, now := n.Last()
			return now == calls
		})
		if all, over := outages(); all > atKill+1 || all != over+1 {
			t.Errorf("%d outages were told before the server was killed, and now %d, of which %d are over", atKill, all, over)
		}
		if set, _ := n.Last(); len(set.Leases) != len(before.Leases) {
			t.Errorf("%d peers while the server was away, were %d", len(set.Leases), len(before.Leases))
		}
		s.Start()
		// Nothing that was written can be missing.
		eventually.True(t, "up to date again", func() bool {
			set, _ := n.Last()
			for _, l := range set.Leases {
				if string(l.V4.Data) != o.node(l.Name).Annotations[prefix+"backend-data"] {
					return false
				}
			}
			return len(set.Leases) == 5
		})
		// Whoever waits longest between tries comes last, and a server that dies before that makes one outage of two.
		eventually.True(t, "the outage is over", func() bool {
			all, over := outages()
			return all == over
		})
	}
	// Each is told once, not with every try. A server that starts slowly refuses and falters in between, which is told, too.
	if all, _ := outages(); n.logs.Count() > 10*all {
		t.Errorf("log of %d outages:\n%s", all, n.logs)
	}

	// Our annotations go and the server dies at once: they are put back when it is there again.
	o.annotate("killed-0", "backend-data", "")
	s.Restart()
	eventually.True(t, "our annotations are back", func() bool { return o.ours("killed-0") == whole })
	if err := n.Publish(t.Context(), l); err != nil {
		t.Error(err)
	}
	if !strings.Contains(s.AuditLog(), `"userAgent":"flanneld/test"`) {
		t.Error("the API server does not know what program asks")
	}
}

// A server that falls silent, and one to which packets are dropped without a word, are noticed and found again.
func TestSilent(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	o := outside{t, s}
	for what, c := range map[string]struct{ away, back func(*nettest.Proxy) }{
		"a pause":      {func(*nettest.Proxy) { s.Pause() }, func(*nettest.Proxy) { s.Resume() }},
		"a black hole": {func(p *nettest.Proxy) { p.BlackHole(true) }, func(p *nettest.Proxy) { p.BlackHole(false) }},
	} {
		name := "silent-" + what[len(what)-4:]
		o.add(name, "10.244.1.0/24")
		proxy := nettest.NewProxy(t, s.Addr(), 0)
		n := start(t, s, name, func(op *Options) { op.Kubeconfig, _ = s.Kubeconfig(s.Token(name), proxy.Addr()) })
		n.scope = "peer-"
		l := n.join(tenNet, "192.168.0.1", mac1)
		stop := n.Run()
		n.Sees("")
		c.away(proxy)
		eventually.True(t, what+" is noticed", func() bool { return n.logs.Count("cause=store-silent") >= 1 })
		published := make(chan error, 1)
		l.V4.Data = []byte(mac2)
		go func() { published <- n.Publish(t.Context(), l) }()
		time.Sleep(8 * time.Second) // the outage
		c.back(proxy)
		o.peer("peer-1", "10.244.2.0/24", "192.168.0.2")
		n.Sees("peer-1")
		begin := time.Now()
		if err := <-published; err != nil || o.node(name).Annotations[prefix+"backend-data"] != mac2 {
			t.Errorf("published meanwhile: %v", err)
		}
		t.Logf("%s: published %v later", what, time.Since(begin))
		if n.logs.Count("cause=store-silent") > 4 { // a busy server may falter again while it comes back
			t.Errorf("log of %s:\n%s", what, n.logs)
		}
		stop()
		o.remove("peer-1")
	}
}

// The server is away when the node starts.
func TestStartsLater(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	o := outside{t, s}
	o.add("later-1", "10.244.1.0/24")
	kubeconfig, _ := s.Kubeconfig(s.Token("later-1"), "")
	s.Kill()
	n := start(t, s, "later-1", func(op *Options) { op.Kubeconfig = kubeconfig })
	got := make(chan error, 1)
	go func() {
		_, err := n.Acquire(t.Context(), tenNet, subnet.Lease{})
		got <- err
	}()
	eventually.True(t, "it is said", func() bool {
		return len(n.logs.With("cause=store-silent").Naming("error", syscall.ECONNREFUSED.Error())) > 0
	})
	s.Start()
	begin := time.Now()
	if err := <-got; err != nil || n.logs.Count("cause=store-back") == 0 || n.logs.Count("cause=store-silent") > 4 {
		t.Errorf("%v\n%s", err, n.logs)
	}
	t.Logf("acquired %v after the server was back", time.Since(begin))
}

// What the role lacks is logged and reported, verb and resource, and waited for.
func TestForbidden(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	o := outside{t, s}
	o.add("forbidden-1", "10.244.1.0/24")
	o.peer("forbidden-2", "10.244.2.0/24", "192.168.0.2")
	role, err := s.Client.RbacV1().ClusterRoles().Get(t.Context(), "flannel", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rules := role.Rules
	allow := func(rules ...rbacv1.PolicyRule) {
		t.Helper()
		role.Rules = rules
		if role, err = s.Client.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	nodes := func(verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: verbs}
	}
	allow()
	outage := subnet.NewOutage(slog.New(slog.DiscardHandler), "the Kubernetes API")
	n := start(t, s, "forbidden-1", func(op *Options) { op.Outage = outage })
	joined := make(chan error, 1)
	go func() {
		l, err := n.Acquire(t.Context(), tenNet, subnet.Lease{})
		if err == nil {
			err = n.Publish(t.Context(), described(l, "192.168.0.1", mac1))
		}
		n.Run()
		joined <- err
	}()
	said := func(verb, resource string, times int) {
		t.Helper()
		eventually.True(t, "the lack of "+verb+" "+resource+" is said", func() bool {
			return len(n.logs.With("cause="+causeDenied).Naming("error", " "+verb+" ", strconv.Quote(resource))) == times
		})
	}
	reported := func(verb string) {
		t.Helper()
		eventually.True(t, "the lack of "+verb+" is reported", func() bool {
			err := outage.Err()
			return err != nil && strings.Contains(err.Error(), "cannot "+verb+" ") && outage.Since().IsZero()
		})
	}
	said("list", "nodes", 1)
	reported("list")
	allow(nodes("list"))
	said("patch", "nodes/status", 1)
	reported("patch")
	allow(nodes("list"), rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}})
	if err := <-joined; err != nil {
		t.Error(err)
	}
	said("watch", "nodes", 2) // of ours and of all
	reported("watch")         // although lists are allowed
	n.Sees("forbidden-2")
	allow(rules...)
	o.peer("forbidden-3", "10.244.3.0/24", "192.168.0.3")
	n.Sees("forbidden-2 forbidden-3")
	eventually.True(t, "it says what is allowed now", func() bool { return n.logs.Count("cause="+causeGranted) >= 3 })
	eventually.True(t, "no denial is reported any more", func() bool { return outage.Err() == nil })
	if wrong := n.logs.With("cause=store-silent").Naming("error", "forbidden"); len(wrong) > 0 {
		t.Errorf("a denial is taken for an outage: %s", wrong)
	}
}

// A token that ended and was replaced, a certificate that expired and was renewed, and a kubeconfig that was replaced.
func TestRenewedCredentials(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	o := outside{t, s}
	const life = 20 * time.Second // time enough to join
	const leeway = time.Minute    // that the server grants to clocks that differ
	t.Run("token", func(t *testing.T) {
		t.Parallel()
		o := outside{t, s}
		o.add("token-1", "10.244.1.0/24")
		kubeconfig, file := s.Kubeconfig(s.ShortToken("token-1", life-leeway), "")
		n := start(t, s, "token-1", func(op *Options) { op.Kubeconfig = kubeconfig })
		l := n.join(tenNet, "192.168.0.1", mac1)
		n.Run()
		time.Sleep(life + 11*time.Second) // for 10 seconds the server believes what it has seen to be true
		l.V4.Data = []byte(mac2)
		published := make(chan error, 1)
		go func() { published <- n.Publish(t.Context(), l) }()
		eventually.True(t, "the denial is said", func() bool {
			return len(n.logs.With("cause="+causeDenied).Naming("error", string(metav1.StatusReasonUnauthorized))) == 1
		})
		if err := os.WriteFile(file, []byte(s.Token("token-1")), 0o600); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := <-published; err != nil {
			t.Error(err)
		}
		t.Logf("published %v after the token was renewed", time.Since(begin))
		if text := n.logs.String(); strings.Contains(text, "eyJ") {
			t.Errorf("a token is in the log:\n%s", text)
		}
	})
	t.Run("certificate", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		kubeconfig := filepath.Join(dir, "kubeconfig")
		user := fmt.Sprintf("client-certificate: %s, client-key: %s", filepath.Join(dir, "crt"), filepath.Join(dir, "key"))
		writeKubeconfig(t, kubeconfig, s, s.Addr(), user)
		issue(t, s, dir, life)
		o.add("certificate-1", "10.244.2.0/24")
		n := start(t, s, "certificate-1", func(op *Options) { op.Kubeconfig = kubeconfig })
		l := n.join(tenNet, "192.168.0.1", mac1)
		n.Run()
		time.Sleep(life + 2*time.Second) // until the certificate has expired
		l.V4.Data = []byte(mac2)
		published := make(chan error, 1)
		go func() { published <- n.Publish(t.Context(), l) }()
		eventually.True(t, "the denial is said", func() bool { return n.logs.Count("level=WARN") >= 1 })
		issue(t, s, dir, time.Hour)
		begin := time.Now()
		if err := <-published; err != nil {
			t.Error(err)
		}
		t.Logf("published %v after the certificate was renewed\n%s", time.Since(begin), n.logs)
	})
	t.Run("kubeconfig", func(t *testing.T) { // it has the token itself
		t.Parallel()
		o := outside{t, s}
		o.add("kubeconfig-1", "10.244.3.0/24")
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		proxy := nettest.NewProxy(t, s.Addr(), 0)
		writeKubeconfig(t, kubeconfig, s, proxy.Addr(), "token: "+s.ShortToken("kubeconfig-1", life-leeway))
		var last atomic.Value // server and status of the last answer
		record := func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if err == nil {
				last.Store(fmt.Sprint(r.URL.Host, " ", resp.StatusCode))
			}
			return resp, err
		}
		n := startWith(t, s, "kubeconfig-1", func(op *Options) { op.Kubeconfig = kubeconfig }, record)
		l := n.join(tenNet, "192.168.0.1", mac1)
		n.Run()
		time.Sleep(life + 11*time.Second) // as above
		l.V4.Data = []byte(mac2)
		published := make(chan error, 1)
		go func() { published <- n.Publish(t.Context(), l) }()
		eventually.True(t, "the denial is said", func() bool {
			return len(n.logs.With("cause="+causeDenied).Naming("error", string(metav1.StatusReasonUnauthorized))) == 1
		})
		writeKubeconfig(t, kubeconfig, s, s.Addr(), "client-certificate-data: bm9uZQ==, client-key-data: bm9uZQ==")
		named := func() int { return len(n.logs.With("level=WARN").Naming("file", kubeconfig)) }
		eventually.True(t, "a wrong kubeconfig is named", func() bool { return named() == 1 })
		if now := last.Load(); now != proxy.Addr()+" 401" {
			t.Errorf("a wrong kubeconfig is used: %v", now)
		}
		writeKubeconfig(t, kubeconfig, s, s.Addr(), "") // valid, as between two steps of kubectl config set-*
		eventually.True(t, "an anonymous user is denied", func() bool { return last.Load() == s.Addr()+" 403" })
		writeKubeconfig(t, kubeconfig, s, s.Addr(), "token: "+s.Token("kubeconfig-1"))
		begin := time.Now()
		if err := <-published; err != nil {
			t.Error(err)
		}
		t.Logf("published %v after the kubeconfig was replaced", time.Since(begin))
		eventually.True(t, "the new kubeconfig is used", func() bool {
			return strings.HasPrefix(last.Load().(string), s.Addr()+" 20") // 201 for an Event
		})
		if text := n.logs.String(); strings.Contains(text, "eyJ") || named() != 1 {
			t.Errorf("log:\n%s", text)
		}
	})
}

// writeKubeconfig writes or replaces a kubeconfig with a server, host:port, and a user.
func writeKubeconfig(t *testing.T, path string, s *kubetest.Server, server, user string) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://%s", certificate-authority: %s}}]
users: [{name: u, user: {%s}}]
contexts: [{name: lab, context: {cluster: lab, user: u}}]
current-context: lab
`, server, s.File("ca.crt"), user)
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// issue writes a client certificate of the cluster's authority, good for a while.
func issue(t *testing.T, s *kubetest.Server, dir string, life time.Duration) {
	t.Helper()
	read := func(name string) []byte {
		text, err := os.ReadFile(s.File(name))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		return block.Bytes
	}
	ca, err := x509.ParseCertificate(read("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	caKey, err := x509.ParseECPrivateKey(read("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject: pkix.Name{CommonName: "flannel", Organization: []string{"system:masters"}}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(life), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"crt": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "EC PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
