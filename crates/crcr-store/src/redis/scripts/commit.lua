-- Applies a batch as a whole, or changes nothing.
local now = argument()

local is_current = true
each(function()
  local key, expected = argument(), argument()
  local found = call('GETRANGE', prefix .. ':record:' .. key, 0, 15)
  if found == '' then found = padded(0) end
  is_current = is_current and found == expected
end)
if not is_current then return {'conflict', 0, 0} end

local settled, lease, outcome, settled_until, settled_error
each(function()
  settled, lease, outcome = argument(), argument(), argument()
  settled_until, settled_error = argument(), argument()
end)
if settled then
  local task = call('HMGET', task_key(settled), 'state', 'lease')
  if task[1] ~= 'leased' or task[2] ~= lease then return {'lease_lost', 0, 0} end
end

-- No charge is taken before all are known to be covered.
local limited, left = nil, {}
local charges = 0
each(function()
  local bucket, full, per_minute = argument(), tonumber(argument()), tonumber(argument())
  local cost, first_of = tonumber(argument()), argument()
  charges = charges + 1
  if first_of ~= '' and call('EXISTS', prefix .. ':bucket:' .. first_of) == 1 then return end
  local key = prefix .. ':bucket:' .. bucket
  local held = call('HMGET', key, 'tokens', 'at')
  local tokens = full
  -- A bucket from the future is full: the clock went back, and that must block nobody.
  if held[1] and tonumber(held[2]) <= tonumber(now) + 60000 then
    local passed = math.max(tonumber(now) - tonumber(held[2]), 0)
    tokens = math.min(tonumber(held[1]) + passed * per_minute / 60000, full)
  end
  if tokens < cost and not limited then
    local wait = 86400000
    if per_minute > 0 then wait = math.min(math.ceil((cost - tokens) * 60000 / per_minute), wait) end
    limited = {'limited', wait, charges - 1}
  end
  table.insert(left, {bucket, key, tokens - cost})
end)
if limited then return limited end

local sequence = call('INCR', prefix .. ':sequence')

for _, one in ipairs(left) do
  call('HSET', one[2], 'tokens', string.format('%.17g', one[3]), 'at', now)
  -- By then the bucket is full again.
  call('ZADD', prefix .. ':expiry', string.format('%.0f', now + 93600000), 'bucket:' .. one[1])
end

each(function()
  local key, value, expires_at = argument(), argument(), argument()
  local name = prefix .. ':record:' .. key
  local version = tonumber(call('GETRANGE', name, 0, 15)) or 0
  call('SET', name, padded(version + 1) .. value)
  call('ZADD', prefix .. ':expiry', expires_at, 'record:' .. key)
end)

each(function()
  local set, member, score, expires_at = argument(), argument(), argument(), argument()
  call('ZADD', prefix .. ':set:' .. set, score, member)
  call('ZADD', prefix .. ':expiry', expires_at, 'member:' .. #set .. ':' .. set .. member)
end)

-- The earlier of two times, either of which can be missing.
local function earlier(one, other)
  if one and other then
    return tonumber(one) < tonumber(other) and one or other
  end
  return one or other
end

local function later(one, other)
  return tonumber(one) > tonumber(other) and one or other
end

-- The settled task goes first: the batch may put its own successor into the queue.
if settled and outcome ~= 'keep' then
  local name = task_key(settled)
  local task = call('HMGET', name, 'lane', 'again_at', 'failed', 'key')
  local lane, again_at, failed, key = task[1], task[2], tonumber(task[3]), task[4]
  if outcome == 'done' and not again_at then
    remove_task(settled, key, lane, 'leased')
  else
    local state, due_at = 'ready', nil
    if outcome == 'done' then
      due_at, failed = again_at, 0
    elseif outcome == 'later' then
      due_at, failed = earlier(again_at, settled_until), 0
    elseif outcome == 'retry' then
      due_at, failed = earlier(again_at, settled_until), failed + 1
    elseif outcome == 'postpone' then
      due_at = earlier(again_at, settled_until)
    elseif outcome == 'release' then
      due_at = earlier(again_at, now)
    elseif again_at then
      due_at, failed = again_at, 0
    else
      state, due_at, failed = 'dead', settled_until, failed + 1
    end
    call('HSET', name, 'state', state, 'due_at', due_at, 'failed', failed, 'changed_at', now)
    if failed == 0 and outcome ~= 'postpone' and outcome ~= 'release' then
      call('HSET', name, 'created_at', due_at)
    end
    call('HDEL', name, 'lease', 'again_at')
    if settled_error ~= '' then call('HSET', name, 'last_error', settled_error) end
    place(settled, lane, 'leased', state, due_at)
  end
end

each(function()
  local key, lane, payload, due_at = argument(), argument(), argument(), argument()
  local id = call('HGET', prefix .. ':task_ids', key)
  if not id then
    id = padded(call('INCR', prefix .. ':last_task'))
    call('HSET', prefix .. ':task_ids', key, id)
    call('SADD', kind_key(key), id)
    call('HSET', task_key(id), 'key', key, 'lane', lane, 'payload', payload, 'state', 'ready',
      'due_at', due_at, 'failed', 0, 'created_at', later(due_at, now), 'changed_at', now)
    place(id, lane, nil, 'ready', due_at)
    return
  end
  local name = task_key(id)
  local task = call('HMGET', name, 'lane', 'payload', 'state', 'due_at', 'again_at', 'created_at')
  local state, created_at = task[3], task[6]
  if task[2] ~= payload then
    created_at = later(due_at, now)
    call('HSET', name, 'payload', payload, 'failed', 0)
  end
  if state == 'leased' then
    call('HSET', name, 'again_at', earlier(task[5], due_at))
  else
    if state == 'ready' then
      due_at = earlier(task[4], due_at)
      created_at = earlier(created_at, later(due_at, now))
    else
      created_at = later(due_at, now)
      call('HSET', name, 'state', 'ready', 'failed', 0)
    end
    call('HSET', name, 'due_at', due_at)
    place(id, task[1], state, 'ready', due_at)
  end
  call('HSET', name, 'created_at', created_at, 'changed_at', now)
end)

each(function()
  call('XADD', prefix .. ':outbox', '*', 'fact', argument())
end)

finish_lanes(now)
return {'done', sequence, 0}
