package main

import (
	"context"
	"path/filepath"
	"reflect"

	"flannel/pkg/status"
	"flannel/subnet/kube"
)

// settings returns the flags that say where the leases are, for commands that the
// daemon helps to find them. They contain no secrets.
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

// absolute returns the path of a file for programs with another working directory.
func absolute(file string) string {
	if file == "" {
		return ""
	}
	if path, err := filepath.Abs(file); err == nil {
		return path
	}
	return file
}

// askSettings adopts the settings of the running daemon, and returns them. If none
// answers, the flags count alone, and the settings are empty. onBehalf reports whether
// only the daemon has the credentials for the API server that the settings name.
func (o *options) askSettings(ctx context.Context) (daemons status.Settings, onBehalf bool) {
	r, err := status.Ask(ctx, status.Socket(o.SubnetFile))
	if err != nil || r.Settings == nil {
		return status.Settings{}, false
	}
	named := o.Kube.named() // by flags of this command
	o.adopt(*r.Settings)
	return *r.Settings, r.Settings.Kube != nil && !named && !kube.HasCredentials(*o.Kube.client())
}

// adopt sets the options for which no flag was given to those of the daemon.
func (o *options) adopt(s status.Settings) {
	usual, _ := parseOptions(nil, nil) // the defaults are valid
	if k := s.Kube; k != nil {
		o.Kube.On = true
		adopt(&o.Kube.APIURL, usual.Kube.APIURL, k.APIURL)
		adopt(&o.Kube.Kubeconfig, usual.Kube.Kubeconfig, k.Kubeconfig)
		adopt(&o.Kube.APIFrom, usual.Kube.APIFrom, k.APIFrom)
		adopt(&o.Kube.AnnotationPrefix, usual.Kube.AnnotationPrefix, k.AnnotationPrefix)
		adopt(&o.Kube.NetConfPath, usual.Kube.NetConfPath, k.NetConfPath)
		adopt(&o.Kube.NodeName, "", k.NodeName)
		adopt(&o.Kube.PodName, "", k.PodName)
		adopt(&o.Kube.PodNamespace, "", k.PodNamespace)
	}
	if e := s.Etcd; e != nil {
		adopt(&o.Etcd.Endpoints, usual.Etcd.Endpoints, e.Endpoints)
		adopt(&o.Etcd.Prefix, usual.Etcd.Prefix, e.Prefix)
		adopt(&o.Etcd.KeyFile, usual.Etcd.KeyFile, e.KeyFile)
		adopt(&o.Etcd.CertFile, usual.Etcd.CertFile, e.CertFile)
		adopt(&o.Etcd.CAFile, usual.Etcd.CAFile, e.CAFile)
		if o.Etcd.Password.Reveal() != "" { // the daemon does not tell it, and the client refuses a name without it
			adopt(&o.Etcd.Username, usual.Etcd.Username, e.Username)
		}
	}
}

// adopt replaces a value that is the default.
func adopt[T any](value *T, usual, daemons T) {
	if reflect.DeepEqual(*value, usual) {
		*value = daemons
	}
}
