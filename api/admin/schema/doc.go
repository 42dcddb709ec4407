// Package schema owns the types of the admin API: what an operator sees of nodes and of the cluster, and can change.
// They do not depend on how data is replicated. Their JSON names never change, because programs read them.
package schema
