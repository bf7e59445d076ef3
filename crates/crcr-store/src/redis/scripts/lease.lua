-- Leases due tasks of the lanes whose turn it is: one of each lane, then a second one of each, as long as
-- there is room.
local now, lease_end, lease, most = argument(), argument(), argument(), tonumber(argument())
local free = {}
each(function()
  local pool = argument()
  free[pool] = tonumber(argument())
end)
local lanes = {}
each(function()
  local lane, pool, room = argument(), argument(), argument()
  local due = call('ZRANGEBYSCORE', prefix .. ':lane:' .. lane, '-inf', now, 'LIMIT', 0, room)
  table.insert(lanes, {pool = pool, due = due})
end)

local chosen = {}
local turn, found = 1, true
while found do
  found = false
  for _, lane in ipairs(lanes) do
    local id = lane.due[turn]
    if id and free[lane.pool] > 0 and #chosen < most then
      free[lane.pool] = free[lane.pool] - 1
      table.insert(chosen, id)
      found = true
    end
  end
  turn = turn + 1
end

local leased = {}
for _, id in ipairs(chosen) do
  local name = task_key(id)
  local task = call('HMGET', name, 'key', 'lane', 'payload', 'failed', 'created_at', 'state')
  call('HSET', name, 'state', 'leased', 'lease', lease, 'due_at', lease_end, 'changed_at', now)
  call('HSET', prefix .. ':served', task[2], now)
  place(id, task[2], task[6], 'leased', lease_end)
  table.insert(leased, {id, task[1], task[2], task[3], task[4], task[5]})
end
finish_lanes(now)
return leased
