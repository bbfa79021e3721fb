package main

import (
	"encoding/json"

	"sigs.k8s.io/yaml"
)

// kubeletConfigName is the file in the base directory for a kubelet that has no
// configuration.
const kubeletConfigName = "kubelet.json"

// kubeletFlags returns the flags of kubelet with a configuration file.
func kubeletFlags(s nodeSettings, config string) []string {
	flags := []string{"--config=" + config, "--kubeconfig=" + s.KubeConfig, "--hostname-override=" + s.NodeName, "--node-ip=" + s.ManagementIP, "--v=2"}
	if s.KubeletFeatureGates != "" {
		flags = append(flags, "--feature-gates="+s.KubeletFeatureGates)
	}
	return flags
}

// runtimeFlag returns kubelet's flag for the container runtime, nil if its configuration, YAML or
// JSON, names one; kubeadm also writes the field without a value. With neither, kubelet asks a
// Unix socket, on Windows, too. An error of the configuration is left to kubelet to report.
func runtimeFlag(config []byte, endpoint string) []string {
	var c struct {
		ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint"`
	}
	if yaml.Unmarshal(config, &c) == nil && c.ContainerRuntimeEndpoint != "" {
		return nil
	}
	return []string{"--container-runtime-endpoint=" + endpoint}
}

// kubeletConfiguration has the fields of kubelet's KubeletConfiguration that node start
// sets.
type kubeletConfiguration struct {
	APIVersion               string                `json:"apiVersion"`
	Kind                     string                `json:"kind"`
	ClusterDNS               []string              `json:"clusterDNS"`
	ClusterDomain            string                `json:"clusterDomain"`
	ResolvConf               string                `json:"resolvConf"`
	CgroupsPerQOS            bool                  `json:"cgroupsPerQOS"`
	EnforceNodeAllocatable   []string              `json:"enforceNodeAllocatable"`
	ContainerRuntimeEndpoint string                `json:"containerRuntimeEndpoint"`
	Authentication           kubeletAuthentication `json:"authentication"`
}

// kubeletAuthentication and kubeletX509 are parts of kubelet's configuration.
type kubeletAuthentication struct {
	X509 *kubeletX509 `json:"x509,omitempty"`
}

type kubeletX509 struct {
	ClientCAFile string `json:"clientCAFile"`
}

// kubeletConfig returns a configuration for a kubelet that has none. It accepts clients
// with a certificate of the CA, such as the API server, if the CA's file exists.
func kubeletConfig(s nodeSettings) ([]byte, error) {
	config := kubeletConfiguration{
		APIVersion: "kubelet.config.k8s.io/v1beta1", Kind: "KubeletConfiguration",
		ClusterDNS: []string{s.KubeDNSServiceIP}, ClusterDomain: "cluster.local",
		EnforceNodeAllocatable: []string{"none"}, ContainerRuntimeEndpoint: s.ContainerRuntimeEndpoint,
	}
	if needFile(s.ClientCA) == nil {
		config.Authentication.X509 = &kubeletX509{s.ClientCA}
	}
	return json.MarshalIndent(config, "", "  ")
}
