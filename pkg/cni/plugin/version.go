package plugin

import (
	"encoding/json"
	"io"

	"github.com/containernetworking/cni/pkg/version"
)

// implementation distinguishes this plugin, in its answer to VERSION, from other
// plugins of the same name.
const implementation = "flanneld"

// Version returns the answer to VERSION. It extends the specification by
// "implementation" and "release", which package install compares.
func Version(release string) version.PluginInfo { return info{version.All, release} }

// info is the answer to VERSION, with the release of this program.
type info struct {
	version.PluginInfo
	release string
}

// Encode implements version.PluginInfo.
func (i info) Encode(w io.Writer) error {
	return json.NewEncoder(w).Encode(struct {
		CNIVersion     string   `json:"cniVersion"`
		Supported      []string `json:"supportedVersions"`
		Implementation string   `json:"implementation"`
		Release        string   `json:"release"`
	}{version.Current(), i.SupportedVersions(), implementation, i.release})
}
