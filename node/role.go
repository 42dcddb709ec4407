package node

import "strings"

// sidecar reports whether the node stores no data and sends all requests for data to servers.
func (c Cluster) sidecar() bool { return c.Role == RoleSidecar }

// joining reports whether the node joins an existing cluster. Otherwise, a node with a new data directory forms a
// cluster of one, which other nodes may join.
func (c Cluster) joining() bool { return len(c.Join) > 0 }

// Local reports whether the node joins no other nodes, and listens only on loopback addresses. Then only programs on
// this machine can reach its API, its metrics and its ports for other nodes.
func (c Config) Local() bool {
	return !c.Cluster.joining() && !exposed(append([]string{c.Cluster.Bind, c.Metrics.Listen}, c.API.Listen...))
}

// validateRole refuses settings that contradict the role sidecar.
func (c Cluster) validateRole(p *problems) {
	if !c.sidecar() {
		return
	}
	p.check(c.joining(), "--role", c.Role, "a sidecar holds no data and needs servers: name them with --join")
	p.check(c.BootstrapExpect == 0, "--bootstrap-expect", c.BootstrapExpect,
		"leave it out with --role sidecar: only servers form a cluster")
}

// defaultID returns the node id for a new data directory if the user has not chosen one. A node that joins other nodes
// gets an id from its host name (see nodeName). For any other node the result is "", and the node gets a random id.
func (c Cluster) defaultID() string {
	if !c.joining() {
		return ""
	}
	return nodeName(c.Host)
}

// nodeName returns the node id for a host name. The id is the first label of the host name in lower case, without the
// characters that a node id must not contain. nodeName returns "" if the result is not a valid node id.
func nodeName(host string) string {
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	var b strings.Builder
	for _, r := range host {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || b.Len() > 0 && strings.ContainsRune("-_", r) {
			b.WriteRune(r)
		}
	}
	name := strings.TrimRight(b.String(), "-_")
	if !isName(name) || name == "localhost" || name == sharedDir {
		return ""
	}
	return name
}
