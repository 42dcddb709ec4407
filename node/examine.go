package node

import (
	"cmp"
	"context"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/node/doctor"
)

// Examine checks whether a node with the configuration c would work, without starting it. The checks are those of
// doctor.Examine.
func Examine(ctx context.Context, c Config) schema.Checkup {
	return doctor.Examine(ctx, c.plan())
}

func (c Config) plan() doctor.Plan {
	c = c.WithDefaults()
	at := c.Cluster
	p := doctor.Plan{
		Invalid: c.Validate(), NodeID: cmp.Or(at.NodeID, at.defaultID()), Disk: c.Data.disk(),
		Credentials: c.Security.files(), Join: at.Join, Forms: at.BootstrapExpect > 0,
	}
	if c.API.SocketDir == "" {
		p.Listeners = append(p.Listeners, doctor.Listener{Flag: "--http-port", Network: "tcp", Host: c.API.Listen[0],
			Port: c.API.HTTP.Number})
	}
	if c.API.SocketDir == "" && !c.API.GRPCOff {
		p.Listeners = append(p.Listeners, doctor.Listener{Flag: "--grpc-port", Network: "tcp", Host: c.API.Listen[0],
			Port: c.API.GRPC.Number})
	}
	p.Listeners = append(p.Listeners, []doctor.Listener{
		{Flag: "--gossip-port", Network: "tcp", Host: at.Bind, Port: at.Gossip.Number,
			Soft: at.port(at.Gossip).Fallback},
		{Flag: "--gossip-port", Network: "udp", Host: at.Bind, Port: at.Gossip.Number,
			Soft: at.port(at.Gossip).Fallback},
		{Flag: "--peer-port", Network: "tcp", Host: at.Bind, Port: at.Peer.Number, Soft: at.port(at.Peer).Fallback},
	}...)
	return p
}

// disk returns the data directory for the doctor.
func (d Data) disk() doctor.Disk { return doctor.Disk{Dir: d.Dir, MinFree: d.MinFree} }
