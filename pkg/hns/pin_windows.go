package hns

import (
	_ "github.com/Microsoft/hcsshim"
	_ "github.com/Microsoft/hcsshim/hcn"
	_ "golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)
