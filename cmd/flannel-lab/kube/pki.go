package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Files in the directory. Tests use the keys for tokens to sign tokens that the API
// does not issue.
const (
	kubeconfigFile = "admin.kubeconfig"
	tokenKey       = "sa.key"
	tokenPublic    = "sa.pub"
)

// pki holds the certificate authority and the certificate of the administrator.
// They are created once for a directory, so clients keep working after a
// restart.
type pki struct{ ca, adminCert, adminKey []byte }

// loadPKI reads the files of an earlier run in the working directory, or creates them.
// addresses are those under which clients reach the server; they only matter when the
// files are created.
func loadPKI(addresses []netip.Addr) (*pki, error) {
	if _, err := os.Stat("admin.crt"); errors.Is(err, os.ErrNotExist) {
		if err := makePKI(addresses); err != nil {
			return nil, fmt.Errorf("create keys and certificates: %w", err)
		}
	}
	p := &pki{}
	var errs []error
	for name, to := range map[string]*[]byte{"ca.crt": &p.ca, "admin.crt": &p.adminCert, "admin.key": &p.adminKey} {
		var err error
		*to, err = os.ReadFile(name)
		errs = append(errs, err)
	}
	return p, errors.Join(errs...)
}

// makePKI creates all keys and certificates, each valid for a year.
func makePKI(addresses []netip.Addr) error {
	now := time.Now()
	ca, err := issue("ca", &x509.Certificate{Subject: pkix.Name{CommonName: "flannel-lab"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}, nil, now)
	if err != nil {
		return err
	}
	// Also the address of the Service kubernetes, by which pods reach the server.
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.IPv4(10, 96, 0, 1)}
	for _, a := range addresses {
		ips = append(ips, a.AsSlice())
	}
	if _, err := issue("apiserver", &x509.Certificate{
		Subject: pkix.Name{CommonName: "kube-apiserver"}, IPAddresses: ips,
		DNSNames: []string{"localhost", "kubernetes.default.svc"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca, now); err != nil {
		return err
	}
	// kube-apiserver signs the tokens of service accounts with this key.
	tokens, err := newKey(tokenKey)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&tokens.PublicKey)
	if err != nil {
		return err
	}
	if err := writePEM(tokenPublic, "PUBLIC KEY", public); err != nil {
		return err
	}
	_, err = issue("admin", &x509.Certificate{ // the last file: if it exists, all others do
		// Kubernetes takes the organization as the group; this one may do everything.
		Subject:  pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, now)
	return err
}

// signer is a certificate with its key. That of the certificate authority signs others.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue completes the certificate c, and writes name.key and name.crt, signed by ca, or
// self-signed if ca is nil.
func issue(name string, c *x509.Certificate, ca *signer, now time.Time) (*signer, error) {
	key, err := newKey(name + ".key")
	if err != nil {
		return nil, err
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, err
	}
	// An hour earlier, for clients whose clock is behind.
	c.NotBefore, c.NotAfter = now.Add(-time.Hour), now.AddDate(1, 0, 0)
	c.BasicConstraintsValid = true
	if ca == nil {
		ca = &signer{c, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &signer{signed, key}, writePEM(name+".crt", "CERTIFICATE", der)
}

// newKey creates a key and writes it to a file.
func newKey(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(file, "EC PRIVATE KEY", der)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// restConfig returns the client configuration of the administrator, which the controller
// for podCIDRs uses, too. client-go limits requests to five a second by default, which
// would slow the controller down.
func (p *pki) restConfig(at netip.AddrPort) *rest.Config {
	return &rest.Config{
		Host:            "https://" + at.String(),
		TLSClientConfig: rest.TLSClientConfig{CAData: p.ca, CertData: p.adminCert, KeyData: p.adminKey},
		QPS:             1000, Burst: 1000,
	}
}

// writeKubeconfig writes a self-contained kubeconfig, atomically: when the file
// exists, the server is ready.
func (p *pki) writeKubeconfig(at netip.AddrPort) error {
	c := api.NewConfig()
	c.Clusters["lab"] = &api.Cluster{Server: "https://" + at.String(), CertificateAuthorityData: p.ca}
	c.AuthInfos["admin"] = &api.AuthInfo{ClientCertificateData: p.adminCert, ClientKeyData: p.adminKey}
	c.Contexts["lab"] = &api.Context{Cluster: "lab", AuthInfo: "admin"}
	c.CurrentContext = "lab"
	if err := clientcmd.WriteToFile(*c, kubeconfigFile+".new"); err != nil {
		return err
	}
	return os.Rename(kubeconfigFile+".new", kubeconfigFile)
}
