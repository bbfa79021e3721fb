package windows

import (
	"encoding/json"
	"fmt"
	"slices"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest"
	"flannel/pkg/hns/hnstest/wine"
)

// Order is what a test asks of a machine in another process; it is done in the order of the fields.
type Order struct {
	Turn      json.RawMessage `json:",omitempty"` // some Knobs: the others stay
	Heal      bool            `json:",omitempty"`
	Fail      []hnstest.Fault `json:",omitempty"`
	Restart   bool            `json:",omitempty"`
	ForgetLog bool            `json:",omitempty"`

	// Another hand.
	DeleteNetwork      string    `json:",omitempty"` // its name
	DeleteEndpoint     string    `json:",omitempty"` // its name
	DeleteRemoteSubnet [2]string `json:",omitempty"` // the network's name, the subnet
	DeleteRoutes       string    `json:",omitempty"` // their destination
	AddRoute           *hns.Route
	Rename             [2]string   `json:",omitempty"` // an adapter, its new name
	Readdress          []string    `json:",omitempty"` // an adapter, its new addresses
	StopForwarding     string      `json:",omitempty"` // an adapter
	Replace            [][2]string `json:",omitempty"` // in the text of all policies of all networks
}

// Report is how a machine in another process stands after an Order.
type Report struct {
	Log         []hnstest.Call
	Networks    []json.RawMessage
	Endpoints   []json.RawMessage
	Balancers   []json.RawMessage // load balancers
	Adapters    []hns.Adapter
	Routes      []hns.Route // made by programs
	OpenObjects []string    // see [hnstest.Machine.OpenObjects]
	Trouble     []string
}

// Changes are the calls that changed something.
func (r Report) Changes() []hnstest.Call {
	return slices.DeleteFunc(slices.Clone(r.Log), func(c hnstest.Call) bool { return !c.Changes || c.Result != 0 })
}

// Remote is a machine in another process.
type Remote struct{ *wine.Conn }

// Dial connects to a machine that is served at an address. Close ends the connection.
func Dial(address string) (*Remote, error) {
	c, err := wine.Dial(address)
	return &Remote{c}, err
}

// Do gives an order, and returns how the machine stands after it.
func (r *Remote) Do(o Order) (report Report, err error) {
	text, err := json.Marshal(o)
	if err != nil {
		return report, err
	}
	answer, err := r.Call(control, string(text))
	if err != nil {
		return report, fmt.Errorf("give the simulated machine an order: %w", err)
	}
	return report, json.Unmarshal([]byte(answer), &report)
}
