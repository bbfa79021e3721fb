package subnet

import "net/netip"

// Config is the validated network configuration, but for what only the backend knows to read.
type Config struct {
	V4, V6   Network // a zero Network: family off
	Backend  string  // Backend.Type, in lower case
	NFTables bool    // EnableNFTables
}

// Network is the pod network of one family and how it is divided.
type Network struct {
	Prefix    netip.Prefix // masked
	SubnetLen int          // prefix length of a node's subnet, in bits
	Min, Max  netip.Addr   // base addresses of the first and the last subnet that may be handed out
}

// On tells whether the family is in use.
func (n Network) On() bool { return n.Prefix.IsValid() }
