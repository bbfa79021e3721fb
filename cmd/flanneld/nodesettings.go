package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"flannel/pkg/conf"
	"flannel/pkg/file"
	"flannel/pkg/windows/node"
)

// nodeSettings are the flags of the command node start on Windows that it keeps for the
// next run, and that node reset reads. In the file (settingsName in --base-dir), their
// names are those of the parameters of start.ps1, whose users had them first. The flag
// of ClusterCIDR is --cluster-cidr.
type nodeSettings struct {
	ManagementIP             string
	NetworkMode              string
	ClusterCIDR              string
	ServiceCIDR              string
	KubeDNSServiceIP         string `json:"KubeDnsServiceIP"`
	InterfaceName            string
	LogDir                   string
	KubeletFeatureGates      string
	KubeProxyFeatureGates    string
	KubeConfig               string
	NodeName                 string
	NetConf                  string
	CNIBinDir                string `json:"CniBinDir"`
	CNIConfDir               string `json:"CniConfDir"`
	KubeletConfig            string
	ClientCA                 string
	ContainerRuntimeEndpoint string
	HealthPort               int

	Services bool // kubelet, kube-proxy and flanneld are Windows services, since node start --services; false: processes
}

// declare declares the flags. Parsing them sets the fields, of those that are not given
// to the defaults.
func (s *nodeSettings) declare(set *pflag.FlagSet) {
	set.StringVar(&s.ManagementIP, "management-ip", "", "`address` at which other nodes reach this node; default: as in the last run")
	set.StringVar(&s.NetworkMode, "network-mode", "l2bridge", "overlay (vxlan) or l2bridge (host-gw)")
	set.StringVar(&s.ClusterCIDR, "cluster-cidr", "10.244.0.0/16", "pod `network`")
	set.StringVar(&s.ServiceCIDR, "service-cidr", "10.96.0.0/12", "`network` of Services")
	set.StringVar(&s.KubeDNSServiceIP, "kube-dns-service-ip", "10.96.0.10", "`address` of the cluster's DNS")
	set.StringVar(&s.InterfaceName, "interface-name", "Ethernet", "`name` of the adapter, for the time in which it has no address")
	set.StringVar(&s.LogDir, "log-dir", `C:\k`, "`directory` of the logs")
	set.StringVar(&s.KubeletFeatureGates, "kubelet-feature-gates", "", "feature `gates` of kubelet")
	set.StringVar(&s.KubeProxyFeatureGates, "kube-proxy-feature-gates", "", "feature `gates` of kube-proxy")
	set.StringVar(&s.KubeConfig, "kube-config", "", "kubeconfig `file` of kubelet, kube-proxy and flanneld; default: config in --base-dir")
	set.StringVar(&s.NodeName, "node-name", "", "`name` of the Node; default: the host name, in lower case, as kubelet names it")
	set.StringVar(&s.NetConf, "net-conf", `C:\etc\kube-flannel\net-conf.json`, "`file` of the network configuration")
	set.StringVar(&s.CNIBinDir, "cni-bin-dir", "", "`directory` of the CNI plugins; default: where containerd looks, see cni-dirs")
	set.StringVar(&s.CNIConfDir, "cni-conf-dir", "", "`directory` of the CNI configuration; default: where containerd looks, see cni-dirs")
	set.StringVar(&s.KubeletConfig, "kubelet-config", `C:\var\lib\kubelet\config.yaml`, "kubelet's configuration `file`; if it is missing, one is written to --base-dir")
	set.StringVar(&s.ClientCA, "client-ca", `C:\etc\kubernetes\pki\ca.crt`, "CA `file` of the clients that kubelet accepts, the API server, if its configuration is written")
	set.StringVar(&s.ContainerRuntimeEndpoint, "container-runtime-endpoint", "npipe:////./pipe/containerd-containerd", "`address` of containerd for kubelet, unless its configuration names one")
	set.IntVar(&s.HealthPort, "health-port", 8471, "`port` of flanneld's /healthz, /readyz and /metrics, on 127.0.0.1")
}

// lastSettings reads the file of the last run, which need not exist.
func lastSettings(baseDir string) (last map[string]json.RawMessage, err error) {
	path := filepath.Join(baseDir, settingsName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		// Editors on Windows write a byte order mark.
		err = json.Unmarshal(bytes.TrimPrefix(raw, []byte("\ufeff")), &last)
	}
	if err != nil {
		return nil, fmt.Errorf("read the settings of the last run: %s: %w", path, err)
	}
	return last, nil
}

// complete sets the fields whose flags are not given in set: to the values of the last
// run if the management IP is not given, else it leaves the defaults. It makes all
// paths absolute. Services is always that of the last run. The error is a flagMistake
// if the user can mend it. A Node that has the former default of its name, COMPUTERNAME, keeps it
// unless another one is given: with another name, kubelet would register a second Node.
func (s *nodeSettings) complete(set *pflag.FlagSet, baseDir string) error {
	last, err := lastSettings(baseDir)
	if err != nil {
		return err
	}
	fresh := s.ManagementIP != "" // with the flag, a run does not continue the last one
	computerName := strconv.Quote(strings.ToLower(os.Getenv("COMPUTERNAME")))
	// What remains are the values of the last run that s takes over.
	maps.DeleteFunc(last, func(key string, value json.RawMessage) bool {
		if key == "Services" {
			return false
		}
		return given(set, key) || fresh && (key != "NodeName" || string(value) != computerName)
	})
	if err := s.take(last); err != nil {
		return fmt.Errorf("read the settings of the last run: %w", err)
	}
	if s.ManagementIP == "" {
		return flagMistake{fmt.Errorf("--management-ip is missing, the address at which other nodes reach this node, and there is no %s of an earlier run",
			filepath.Join(baseDir, settingsName))}
	}
	if s.KubeConfig == "" {
		s.KubeConfig = filepath.Join(baseDir, "config")
	}
	if s.NodeName == "" {
		if s.NodeName, err = nodeOfHost(); err != nil {
			return err
		}
	}
	for _, path := range []*string{&s.LogDir, &s.KubeConfig, &s.NetConf, &s.KubeletConfig, &s.ClientCA, &s.CNIBinDir, &s.CNIConfDir} {
		if *path, err = fullPath(*path); err != nil {
			return err
		}
	}
	return s.check()
}

// nodeOfHost returns the host name as kubelet makes a Node's of it. COMPUTERNAME is cut after 15 characters.
func nodeOfHost() (string, error) {
	host, err := os.Hostname()
	return strings.ToLower(host), err
}

// check finds mistakes before they are kept for the next run.
func (s *nodeSettings) check() error {
	if _, err := conf.ParseAddress(s.ManagementIP); err != nil {
		return flagMistake{fmt.Errorf("--management-ip: %w", err)}
	}
	if _, err := node.ComposeNetConf(s.NetworkMode, anyNetwork); err != nil {
		return flagMistake{err}
	}
	return nil
}

// take sets the fields that values has.
func (s *nodeSettings) take(values map[string]json.RawMessage) error {
	raw, err := json.Marshal(values)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, s)
}

// given reports whether the flag for a key of the file is on the command line.
func given(set *pflag.FlagSet, key string) (found bool) {
	set.Visit(func(f *pflag.Flag) {
		found = found || strings.EqualFold(strings.ReplaceAll(f.Name, "-", ""), key)
	})
	return found
}

// keep writes the settings for the next run.
func (s *nodeSettings) keep(baseDir string) error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if _, err := file.Put(filepath.Join(baseDir, settingsName), raw, 0o644); err != nil {
		return fmt.Errorf("keep the settings for the next run: %w", err)
	}
	return nil
}
