package backend

// Kinds returns the supported values of Backend.Type, and those of flannel that are refused
// with a reason. A new backend needs one file and one entry here. V4Only need not list a
// system for which Parse refuses the backend.
func Kinds() []Kind {
	return []Kind{
		{Name: "vxlan", Parse: parseVXLAN, V4Only: []string{"windows"}},
		{Name: "wireguard", Parse: parseWireGuard},
		{Name: "host-gw", Parse: parseHostGW},
		{Name: "ipip", Parse: parseIPIP, V4Only: []string{"linux"}},
		{Name: "ipsec", Parse: parseIPsec, V4Only: []string{"linux"}},
		{Name: "udp", Parse: parseUDP, V4Only: []string{"linux"}},
		{Name: "extension", Parse: parseExtension},
		{Name: "alloc", Parse: parseAlloc},
		{Name: "tencent-vpc", Refused: "it makes routes by the API of Tencent Cloud, where this program has not been tested"},
	}
}

// KindOf returns the Kind of a name, and the zero Kind if there is none.
func KindOf(name string) Kind {
	for _, k := range Kinds() {
		if k.Name == name {
			return k
		}
	}
	return Kind{}
}
