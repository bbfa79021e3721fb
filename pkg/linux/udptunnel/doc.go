// Package udptunnel forwards packets between a TUN device and the peers of the udp
// backend. Each IPv4 packet is the payload of one UDP datagram, from this node's port
// to the same port of the peer: the format of flannel. Both ends decrement the TTL, as
// routers do.
//
//	device ──read──► parse ► find the peer of the destination ► TTL ► socket ──► peer
//	device ◄─write── TTL ◄ sender is the peer of the source ◄ parse ◄ socket ◄── peer
//
// What costs time is done for many packets at once. A read from the device returns up
// to 64 KiB of one TCP or UDP flow (the virtio header of TUN devices), which the tun
// package of WireGuard splits; the kernel sends them as one segmented datagram. The
// other direction is the same with the offloads for receiving.
package udptunnel
