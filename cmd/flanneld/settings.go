package main

import (
	"cmp"
	"context"
	"path/filepath"

	"flannel/pkg/status"
	"flannel/subnet/kube"
)

// The daemon answers on its status socket where it keeps the leases (status.Settings),
// so that an administrator need not repeat the daemon's flags: "flanneld doctor" and
// "flanneld status --cluster" ask for the answer and adopt it.

// settings returns the daemon's answer: its flags that say where the leases are,
// without secrets.
func (o options) settings() *status.Settings {
	if o.Kube.On {
		k := o.Kube
		s := &status.Kube{APIURL: k.APIURL, Kubeconfig: absolute(k.Kubeconfig), AnnotationPrefix: k.AnnotationPrefix,
			NetConfPath: absolute(k.NetConfPath), NodeName: k.NodeName, PodName: k.PodName, PodNamespace: k.PodNamespace}
		for _, file := range k.APIFrom {
			s.APIFrom = append(s.APIFrom, absolute(file))
		}
		return &status.Settings{Kube: s}
	}
	e := o.Etcd
	return &status.Settings{Etcd: &status.Etcd{Endpoints: e.Endpoints, Prefix: e.Prefix, KeyFile: absolute(e.KeyFile),
		CertFile: absolute(e.CertFile), CAFile: absolute(e.CAFile), Username: e.Username}}
}

// absolute returns the path of a file for programs with another working directory, ""
// for "".
func absolute(file string) string {
	if file == "" {
		return ""
	}
	if path, err := filepath.Abs(file); err == nil {
		return path
	}
	return file // there is no working directory
}

// askSettings asks the daemon and adopts its answer, which it also returns: one of its
// two fields is set. If no daemon answers, nothing is adopted, and the answer is empty.
//
// onBehalf reports whether the daemon has to ask the API server for this command: its
// leases are in Kubernetes, no flag of this command says which API server to use, and
// the command has no credentials.
func (o *options) askSettings(ctx context.Context) (answer status.Settings, onBehalf bool) {
	r, err := status.Ask(ctx, status.Socket(o.SubnetFile))
	if err != nil || r.Settings == nil {
		return status.Settings{}, false
	}
	named := o.Kube.named() // before adopt sets the daemon's
	o.adopt(*r.Settings)
	return *r.Settings, r.Settings.Kube != nil && !named && !kube.HasCredentials(*o.Kube.client())
}

// adopt sets the options that this command's flags and variables leave open to the
// daemon's. If the daemon's leases are in Kubernetes, only --kube-subnet-mgr=false makes
// the command use etcd: flags of etcd have no effect on a daemon like that, either.
func (o *options) adopt(s status.Settings) {
	if k := s.Kube; k != nil {
		adopt(o, "kube-subnet-mgr", &o.Kube.On, true)
		adopt(o, "kube-api-url", &o.Kube.APIURL, k.APIURL)
		adopt(o, "kubeconfig-file", &o.Kube.Kubeconfig, k.Kubeconfig)
		adopt(o, "kube-api-from", &o.Kube.APIFrom, k.APIFrom)
		adopt(o, "kube-annotation-prefix", &o.Kube.AnnotationPrefix, k.AnnotationPrefix)
		adopt(o, "net-config-path", &o.Kube.NetConfPath, k.NetConfPath)
		// These are variables without a flag. An empty variable counts as absent.
		o.Kube.NodeName = cmp.Or(o.Kube.NodeName, k.NodeName)
		o.Kube.PodName = cmp.Or(o.Kube.PodName, k.PodName)
		o.Kube.PodNamespace = cmp.Or(o.Kube.PodNamespace, k.PodNamespace)
	}
	if e := s.Etcd; e != nil {
		adopt(o, "etcd-endpoints", &o.Etcd.Endpoints, e.Endpoints)
		adopt(o, "etcd-prefix", &o.Etcd.Prefix, e.Prefix)
		adopt(o, "etcd-keyfile", &o.Etcd.KeyFile, e.KeyFile)
		adopt(o, "etcd-certfile", &o.Etcd.CertFile, e.CertFile)
		adopt(o, "etcd-cafile", &o.Etcd.CAFile, e.CAFile)
		// The client of etcd refuses a user name without a password, and the daemon does
		// not tell its password.
		if o.Etcd.Password.Reveal() != "" {
			adopt(o, "etcd-username", &o.Etcd.Username, e.Username)
		}
	}
}

// adopt sets the option of a flag to the daemon's value, unless the flag or its
// variable is given, if only with its default.
func adopt[T any](o *options, flag string, option *T, daemons T) {
	if _, ok := o.given[flag]; !ok {
		*option = daemons
	}
}
