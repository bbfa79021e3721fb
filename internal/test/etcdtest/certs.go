package etcdtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"time"
)

// makeFiles writes a certificate authority, and a certificate for the server
// and one for clients.
func (s *Server) makeFiles() {
	s.t.Helper()
	caKey, ca := s.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	host, _, err := net.SplitHostPort(s.client)
	s.check("parse the address", err)
	s.issue("server", &x509.Certificate{
		IPAddresses: []net.IP{net.ParseIP(host)}, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature,
		// etcd also uses it as a client of itself
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, caKey, ca)
	s.issue("client", &x509.Certificate{KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, caKey, ca)
}

// ReplaceCA kills etcd and starts it with the same data, with a new certificate
// authority and new certificates. The files have the same names.
func (s *Server) ReplaceCA() {
	s.t.Helper()
	s.Kill()
	s.makeFiles()
	s.Start()
}

// issue writes name.crt and name.key. Without a signer the certificate is
// self-signed.
func (s *Server) issue(name string, c *x509.Certificate, signer *ecdsa.PrivateKey, by *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.check("create a key", err)
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.Subject = pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	if signer == nil {
		signer, by = key, c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by, &key.PublicKey, signer)
	s.check("sign a certificate", err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	s.check("encode a key", err)
	write := func(file, kind string, der []byte) {
		s.check("write "+file, os.WriteFile(s.File(file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}),
			0o600))
	}
	write(name+".crt", "CERTIFICATE", der)
	write(name+".key", "PRIVATE KEY", secret)
	return key, c
}

func (s *Server) pool() *x509.CertPool {
	text, err := os.ReadFile(s.File("ca.crt"))
	s.check("read the CA certificate", err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool
}
