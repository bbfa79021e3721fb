package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/cmd/flannel-lab/lab"
	"flannel/subnet/etcd"
)

const (
	rightPassword = "correct-horse-battery"
	wrongPassword = "incorrect-donkey-fuse"
)

// TestSecureEtcd runs flanneld with an etcd that uses TLS and passwords. No
// secret may appear in any output.
func TestSecureEtcd(t *testing.T) {
	t.Parallel()
	for _, certs := range []bool{false, true} {
		name := "CA only"
		if certs {
			name = "client certificate"
		}
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			certificates(t, dir)
			l := bare(t, lab.Options{Nodes: 2, EtcdArgs: secured(dir, certs)})
			admin := plainClient(t, l)
			_, err := admin.Put(t.Context(), "/coreos.com/network/config", l.Config(`{"Type":"vxlan"}`))
			must(t, err)
			enableAuth(t, admin)

			args := []string{"-etcd-endpoints=https://192.168.100.1:2379", "-etcd-cafile=" + dir + "/ca.crt",
				"-etcd-username=flannel", "-v=10"}
			if certs {
				args = append(args, "-etcd-certfile="+dir+"/client.crt", "-etcd-keyfile="+dir+"/client.key")
			}
			n := l.Nodes[0]
			if !certs {
				refusals(t, n, dir, args)
			}
			for _, n := range l.Nodes {
				n.Env = []string{"FLANNELD_ETCD_PASSWORD=" + rightPassword}
			}
			must(t, l.StartAll(t.Context(), args...))
			reaches(t, name, pod(t, n, "a"), pod(t, l.Nodes[1], "b").IP4)

			// When the server has lost its sessions, flanneld logs in again.
			mark := len(n.Log())
			must(t, l.Etcd.Kill())
			logged(t, n, mark, "cause=store-silent")
			checkNoSecrets(t, n, dir)
			must(t, l.Etcd.Start(t.Context()))
			logged(t, n, mark, "cause=store-back")
			for _, n := range l.Nodes {
				becomesReady(t, n)
				checkNoSecrets(t, n, dir)
				stopped(t, n)
			}
		})
	}
}

// refusals starts flanneld with arguments that cannot work, and checks the exit
// status and the names in the output.
func refusals(t *testing.T, n *lab.Node, dir string, args []string) {
	for _, c := range []struct {
		password, names string
		status          int
		args            []string
	}{
		{wrongPassword, etcd.ErrLogin.Error(), 1, nil},
		{"", "--etcd-password", 2, nil},
		{rightPassword, dir + "/none", 1, []string{"-etcd-cafile=" + dir + "/none"}},
		{rightPassword, "--etcd-keyfile", 2, []string{"-etcd-certfile=" + dir + "/client.crt"}},
		// Certificate and key swapped: an error that quotes the "certificate"
		// would reveal the key.
		{rightPassword, dir + "/client.key", 1, []string{"-etcd-certfile=" + dir + "/client.key",
			"-etcd-keyfile=" + dir + "/client.crt"}},
	} {
		n.Env = []string{"FLANNELD_ETCD_PASSWORD=" + c.password}
		mark := len(n.Log())
		must(t, n.Start(append(args, c.args...)...))
		ends(t, n, c.status)
		if text := n.Log()[mark:]; !strings.Contains(text, c.names) {
			t.Errorf("%v: the output is\n%s\nwant %q", c.args, text, c.names)
		}
		checkText(t, dir, "the log", n.Log())
	}
}

// checkNoSecrets searches for secrets in everything that flanneld outputs while
// it runs.
func checkNoSecrets(t *testing.T, n *lab.Node, dir string) {
	t.Helper()
	for _, path := range []string{"/metrics", "/readyz", "/healthz", "/debug/pprof/cmdline", "/none"} {
		_, body, err := n.Ask(t.Context(), path)
		must(t, err)
		checkText(t, dir, path, body)
	}
	checkText(t, dir, "the log", n.Log())
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", n.PID()))
	must(t, err)
	checkText(t, dir, "the command line", string(cmdline))
	checkText(t, dir, "its files, devices and rules",
		in(t, n.Namespaces, "find /run/flannel -type f -exec cat {} +; ip -d link; iptables-save"))
}

func checkText(t *testing.T, dir, where, text string) {
	t.Helper()
	secrets := []string{rightPassword, wrongPassword}
	for _, file := range []string{"client.key", "server.key", "ca.key"} {
		key, err := os.ReadFile(filepath.Join(dir, file))
		must(t, err)
		secrets = append(secrets, strings.Split(strings.TrimSpace(string(key)), "\n")[1:3]...)
	}
	for _, s := range secrets {
		if strings.Contains(text, s) {
			t.Errorf("%s contains the secret %q", where, s)
		}
	}
}

// TestDeadEndpoint uses a first endpoint that refuses connections and a second
// one that does not answer.
func TestDeadEndpoint(t *testing.T) {
	t.Parallel()
	l := bare(t, lab.Options{Nodes: 1})
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
	n := l.Nodes[0]
	began := time.Now()
	must(t, n.Start("-etcd-endpoints=http://192.168.100.1:9,http://192.168.100.200:2379,http://192.168.100.1:2379"))
	must(t, n.Ready(t.Context()))
	t.Logf("ready after %v", time.Since(began).Round(time.Millisecond))
	// A start that takes longer than a second says that it waits.
	if log := n.Records(0).With("cause=store-silent"); len(log) > 0 { // one late answer is no outage
		t.Errorf("one working endpoint must be enough:\n%s", log)
	}
	stopped(t, n)
}

// secured returns etcd's arguments for TLS on the underlay. On loopback it
// stays without TLS, for the lab.
func secured(dir string, certs bool) []string {
	args := []string{"--listen-client-urls=https://192.168.100.1:2379,http://127.0.0.1:2379", "--bcrypt-cost=4",
		"--advertise-client-urls=https://192.168.100.1:2379", "--cert-file=" + dir + "/server.crt", "--key-file=" + dir + "/server.key"}
	if certs {
		args = append(args, "--client-cert-auth", "--trusted-ca-file="+dir+"/ca.crt")
	}
	return args
}

func plainClient(t *testing.T, l *lab.Lab) *clientv3.Client {
	t.Helper()
	cfg := l.Etcd.ClientConfig()
	cfg.Endpoints = []string{"http://127.0.0.1:2379"}
	c, err := clientv3.New(cfg)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// enableAuth enables authentication, and creates root and a user with only the
// permissions that flanneld needs.
func enableAuth(t *testing.T, c *clientv3.Client) {
	t.Helper()
	ctx := t.Context()
	_, err := c.UserAdd(ctx, "root", "for-the-test-alone")
	must(t, err)
	_, err = c.UserGrantRole(ctx, "root", "root")
	must(t, err)
	_, err = c.RoleAdd(ctx, "network")
	must(t, err)
	prefix := "/coreos.com/network/"
	_, err = c.RoleGrantPermission(ctx, "network", prefix, clientv3.GetPrefixRangeEnd(prefix),
		clientv3.PermissionType(clientv3.PermReadWrite))
	must(t, err)
	_, err = c.UserAdd(ctx, "flannel", rightPassword)
	must(t, err)
	_, err = c.UserGrantRole(ctx, "flannel", "network")
	must(t, err)
	_, err = c.AuthEnable(ctx)
	must(t, err)
}

// certificates writes a CA, and a certificate for the server and one for
// clients, each with its key.
func certificates(t *testing.T, dir string) {
	t.Helper()
	var authority *x509.Certificate
	var signer *ecdsa.PrivateKey
	for i, name := range []string{"ca", "server", "client"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(t, err)
		c := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(192, 168, 100, 1)},
			KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			IsCA:        i == 0, BasicConstraintsValid: true,
		}
		if i == 0 {
			authority, signer = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, authority, &key.PublicKey, signer)
		must(t, err)
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		must(t, err)
		for file, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der},
			".key": {Type: "PRIVATE KEY", Bytes: secret}} {
			must(t, os.WriteFile(filepath.Join(dir, name+file), pem.EncodeToMemory(block), 0o600))
		}
	}
}
