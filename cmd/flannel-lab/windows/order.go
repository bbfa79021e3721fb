package windows

import (
	"encoding/json"
	"fmt"
	"slices"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/wine"
	"flannel/pkg/windows/hns"
)

// Order is what a test wants a machine in another process to do. It is executed in
// the order of the fields, except that Replace comes before DeleteRoutes; zero fields
// do nothing.
type Order struct {
	Turn      json.RawMessage `json:",omitempty"` // Knobs as JSON; knobs that it does not contain keep their values
	Heal      bool            `json:",omitempty"` // removes all faults
	Fail      []hnstest.Fault `json:",omitempty"` // adds faults
	Restart   bool            `json:",omitempty"` // restarts HNS
	ForgetLog bool            `json:",omitempty"` // empties Report.Log

	// Changes through hnstest.Admin.
	DeleteNetwork      string    `json:",omitempty"` // its name
	DeleteEndpoint     string    `json:",omitempty"` // its name
	DeleteRemoteSubnet [2]string `json:",omitempty"` // the network's name, the subnet
	DeleteRoutes       string    `json:",omitempty"` // their destination, a prefix
	AddRoute           *hns.Route
	Rename             [2]string   `json:",omitempty"` // name of an adapter, new name
	Readdress          []string    `json:",omitempty"` // name of an adapter, its new addresses as prefixes
	StopForwarding     string      `json:",omitempty"` // name of an adapter
	Replace            [][2]string `json:",omitempty"` // old and new text, in the settings of all policies of all networks
}

// Report is the state of a machine in another process after an Order.
type Report struct {
	Log         []hnstest.Call
	Networks    []json.RawMessage
	Endpoints   []json.RawMessage
	Balancers   []json.RawMessage // load balancers
	Adapters    []hns.Adapter
	Routes      []hns.Route // made by programs
	OpenObjects []string    // see [hnstest.Machine.OpenObjects]
	Trouble     []string    // errors of the Body
}

// Changes returns the calls in the log that changed something.
func (r Report) Changes() []hnstest.Call {
	return slices.DeleteFunc(slices.Clone(r.Log), func(c hnstest.Call) bool { return !c.Changes || c.Result != 0 })
}

// Remote is a connection to a machine in another process.
type Remote struct{ *wine.Conn }

// Dial connects to a machine at a TCP address. The caller must call Close. After an error
// the Remote is nil.
func Dial(address string) (*Remote, error) {
	c, err := wine.Dial(address)
	if err != nil {
		return nil, err
	}
	return &Remote{c}, nil
}

// Do sends an order and returns the state of the machine after it.
func (r *Remote) Do(o Order) (report Report, err error) {
	text, err := json.Marshal(o)
	if err != nil {
		return report, err
	}
	answer, err := r.Call(control, string(text))
	if err != nil {
		return report, fmt.Errorf("send order to the simulated machine: %w", err)
	}
	return report, json.Unmarshal([]byte(answer), &report)
}
