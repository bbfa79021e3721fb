package cniplugin

import (
	"encoding/json"
	"io"

	"github.com/containernetworking/cni/pkg/version"
)

// Implementation is how this plugin tells itself from others of the same name, in its answer to VERSION.
const Implementation = "flanneld"

// Version is the answer to VERSION: what the specification has, and whose plugin this is.
func Version(release string) version.PluginInfo { return info{version.All, release} }

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
	}{version.Current(), i.SupportedVersions(), Implementation, i.release})
}
